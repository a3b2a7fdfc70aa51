"""Dropout of a batch that several processes share."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SharedDropout(nn.Dropout):
    """Dropout that is drawn for the whole batch, of which each process takes its samples' part.

    Sample i of process r of w is number i·w + r of the whole batch. With random generators in the
    same state in all processes, the batch then sees what it would in a single one, unless its size
    is no multiple of w. Each process draws w times what it needs: torch offers no cheaper way to
    split a stream of random numbers.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Zeroes elements of (N, …) with probability ``p`` and scales the others, in training."""
        if not self.training or self.p == 0:
            return input
        rank, world = 0, 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        whole = F.dropout(input.new_ones(world * len(input), *input.shape[1:]), self.p)
        # A copy, so that the backward pass keeps only this part.
        return input * whole[rank::world].contiguous()
