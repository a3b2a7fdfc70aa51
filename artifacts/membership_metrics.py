"""Reading the ``metrics.json`` of membership attacks: checked where it enters."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from artifacts.errors import InputError
from artifacts.files import read_json
from artifacts.tensors import MEMBERSHIP_SCORES

_MADE_BY = MEMBERSHIP_SCORES.made_by
# Equal in all runs that are averaged or compared.
_SIZES = ("num_members", "num_non_members", "num_masks", "mask_ratio")
_RATES = (
    *("asr", "auc", "balanced_accuracy", "tpr_at_1_fpr", "tpr_at_01_fpr", "tpr", "fpr"),
    "asr_best_threshold",
)
# What a section about one run shows of each attack; over runs, less is needed.
ALL_OF_AN_ATTACK = (*_RATES, "threshold", "intervals", "shadow")


def read_membership_metrics(path: Path, needed: Iterable[str]) -> dict[str, Any]:
    """The content of a ``metrics.json``.

    Args:
        path: The file.
        needed: What each attack must have, of ``ALL_OF_AN_ATTACK``.

    Returns:
        The content: counts positive, rates from 0 to 1, thresholds finite.

    Raises:
        InputError: It is missing, no such file, or holds a number that cannot be.
    """
    metrics = read_json(path, what="metrics file", made_by=_MADE_BY)
    if not isinstance(metrics, dict):
        raise InputError(f"{path} is not the metrics file of membership attacks; {_MADE_BY}")
    for key in ("num_members", "num_non_members"):
        if key not in metrics:
            raise InputError(f"{path} lacks {key}; {_MADE_BY}")
    for key in ("num_members", "num_non_members", "num_masks"):
        value = metrics.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**53:
            raise _wrong(path, key, value, "a positive count")
    _require_number(path, "mask_ratio", metrics.get("mask_ratio", 0), 0, 1)
    notes = metrics.get("notes", {})
    if not isinstance(notes, dict) or not set(notes) <= set(_RATES):
        raise _wrong(path, "notes", notes, "a remark for each of some metrics")
    attacks = metrics.get("attacks")
    if not isinstance(attacks, dict) or not attacks:
        raise _wrong(path, "attacks", attacks, "the results of attacks by name")
    for name, values in attacks.items():
        _check_attack(path, f"attacks/{name}", values, set(needed))
    return metrics


def require_equal_sizes(all_metrics: Mapping[Path, Mapping[str, Any]]) -> None:
    """Refuses to compare runs of other numbers of images or masks, or of another mask ratio.

    Args:
        all_metrics: Content of each file, from :func:`read_membership_metrics`.

    Raises:
        InputError: Two differ.
    """
    first = next(iter(all_metrics))
    for path, metrics in all_metrics.items():
        for key in _SIZES:
            one, other = all_metrics[first].get(key), metrics.get(key)
            if one != other:
                raise InputError(
                    f"{first} has {key} {one}, but {path} has {other}: these cannot be compared; "
                    "run both with the same settings"
                )


def _check_attack(path: Path, where: str, values: Any, needed: set[str]) -> None:  # noqa: ANN401
    if not isinstance(values, dict):
        raise _wrong(path, where, values, "an attack's results")
    if missing := needed - values.keys():
        raise InputError(f"{path} lacks {where}/{min(missing)}; {_MADE_BY}")
    shadow, intervals = values.get("shadow", {}), values.get("intervals", {})
    for key, rates in (("shadow", shadow), ("intervals", intervals)):
        if not isinstance(rates, dict):
            raise _wrong(path, f"{where}/{key}", rates, "rates by name")
    for rates, place in ((values, where), (shadow, f"{where}/shadow")):
        for key in _RATES:
            _require_number(path, f"{place}/{key}", rates.get(key, 0), 0, 1)
    _require_number(path, f"{where}/threshold", values.get("threshold", 0), -1e308, 1e308)
    for key, ends in intervals.items():
        if not isinstance(ends, list) or len(ends) != 2:
            raise _wrong(path, f"{where}/intervals/{key}", ends, "two ends of an interval")
        for end in ends:
            _require_number(path, f"{where}/intervals/{key}", end, 0, 1)


def _require_number(path: Path, where: str, value: Any, low: float, high: float) -> None:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        expected = "a number from 0 to 1" if high == 1 else "a finite number"
        raise _wrong(path, where, value, expected)


def _wrong(path: Path, where: str, value: Any, expected: str) -> InputError:  # noqa: ANN401
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
    return InputError(f"{path}: {where} is {shown}, not {expected}; {_MADE_BY}")
