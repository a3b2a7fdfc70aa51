"""Weights from a library's hub: quick to say that there are none."""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds until a connection counts as impossible; what comes after it may take its time.
_CONNECTION_TIMEOUT = 10


@contextmanager
def hub() -> Iterator[str]:
    """Within it, the hub's library takes weights from its cache alone if the hub is out of reach.

    Otherwise it would try for most of a minute. A slow network makes no difference.

    Yields:
        Why the hub is out of reach, for messages, or nothing.
    """
    from huggingface_hub import constants

    was_offline = constants.HF_HUB_OFFLINE
    reason = "" if was_offline else _obstacle(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = was_offline or bool(reason)
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def _obstacle(url: str) -> str:
    """Why no connection to a server is possible; nothing if it answers, whatever it says."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        urllib.request.urlopen(request, timeout=_CONNECTION_TIMEOUT).close()
    except urllib.error.HTTPError:
        return ""
    except urllib.error.URLError as error:
        # The library may know other certificates than Python does.
        is_certificate = isinstance(error.reason, ssl.SSLError)
        return "" if is_certificate else f"{url} cannot be reached: {error.reason}"
    except (OSError, http.client.HTTPException):
        return ""
    return ""


def no_weights(name: str, file: str, reason: object) -> str:
    """One line for the errors that libraries raise when weights are not there and do not come."""
    from huggingface_hub.constants import HF_HUB_CACHE

    text = " ".join(str(reason).split()) or type(reason).__name__
    return (
        f"no weights for {name}: {file} is not in the cache ({HF_HUB_CACHE}) and could not be "
        f"downloaded ({text[:400]}); give a local file of them as `weights`"
    )
