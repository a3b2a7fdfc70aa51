"""Independent items spread over the processes of one run, and over the parts of a sweep.

Of w processes, item j belongs to process j mod w. What leaves a process (a checkpoint, an artifact)
holds all items in their order, so that nothing on disk depends on the number of processes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import torch
import torch.distributed
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from artifacts.errors import InputError


class IndependentRanks(DDPStrategy):
    """Processes as under ``ddp``, but each works on its own: no gradient is exchanged.

    The CLI takes it when a module names it as its ``ddp_strategy`` and ``--trainer.strategy=ddp``
    is asked for. Plain ``ddp`` would start every process from the first one's items.
    """

    def configure_ddp(self) -> None:
        """Leaves the module as it is."""


def require_one_process(trainer: L.Trainer, why: str) -> None:
    """Refuses several processes for what cannot be spread over them.

    Args:
        trainer: The stage's trainer.
        why: What needs one process, for the message.

    Raises:
        InputError: There are several.
    """
    if trainer.world_size > 1:
        raise InputError(f"{why} in one process: set trainer.devices=1")


def parse_part(part: str) -> tuple[int, int]:
    """Index and number of parts from text such as ``"0/3"``.

    Raises:
        InputError: It is not of that form, or the index is not below the number.
    """
    index, _, count = part.partition("/")
    if not (index.isascii() and count.isascii() and index.isdigit() and count.isdigit()):
        raise InputError(f"part must be written INDEX/COUNT, such as 0/3, got '{part}'")
    if int(index) >= int(count):
        raise InputError(f"part {part}: parts are numbered from 0 to {int(count) - 1}")
    return int(index), int(count)


def gather(share: Tensor, total: int, dim: int = 0) -> Tensor:
    """All items, from the shares of all processes.

    Every process must call it at the same time.

    Args:
        share: This process's items along ``dim``: r, r + w, … of process r of w.
        total: Number of all items.
        dim: Dimension of the items.

    Returns:
        The items in order; in a single process ``share`` itself.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return share
    world = torch.distributed.get_world_size()
    items = share.detach().movedim(dim, 0)
    padded = items.new_zeros(-(-total // world), *items.shape[1:])
    padded[: len(items)] = items
    # Bytes: not every backend sends every type.
    sent = padded.contiguous().view(-1).view(torch.uint8)
    received = [torch.empty_like(sent) for _ in range(world)]
    torch.distributed.all_gather(received, sent)
    shares = torch.stack([piece.view(padded.dtype).view(padded.shape) for piece in received])
    return shares.transpose(0, 1).flatten(0, 1)[:total].movedim(0, dim)


def map_items(
    checkpoint: dict[str, Any], dimensions: Mapping[str, int], function: Callable[..., Tensor]
) -> None:
    """Applies a function to all that a checkpoint holds of the items, its optimisers included.

    Args:
        checkpoint: Of Lightning; changed in place.
        dimensions: Which dimension of which tensor of the state dict is the items'. In the state of
            an optimiser it is the first.
        function: Maps a tensor and that dimension.
    """
    state = checkpoint["state_dict"]
    for name, dim in dimensions.items():
        state[name] = function(state[name], dim)
    # New dictionaries: those of a checkpoint being saved are the optimiser's own.
    checkpoint["optimizer_states"] = [
        {
            "param_groups": [
                {k: function(v, 0) if isinstance(v, Tensor) else v for k, v in group.items()}
                for group in optimizer["param_groups"]
            ],
            # A count of steps, without dimensions, is common to all items.
            "state": {
                key: {n: function(v, 0) if v.dim() > 0 else v for n, v in slot.items()}
                for key, slot in optimizer["state"].items()
            },
        }
        for optimizer in checkpoint["optimizer_states"]
    ]
