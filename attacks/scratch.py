"""Memory for the arrays that a loop needs anew in every iteration."""

from __future__ import annotations

import math

from torch import Tensor


class Scratch:
    """Memory that an attack's loop hands to every iteration instead of asking for it anew.

    The intermediates of an iteration are just large enough for the system's allocator to return
    them each time and fetch them back page by page, a quarter of the time of a mid-sized problem.
    Buffers are handed out in the order of asking and grow to the largest size seen.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        # Views already made of each buffer: slicing anew takes as long as a small product.
        self._views: list[dict[tuple[int, ...], Tensor]] = []
        self._used = 0

    def mark(self) -> int:
        """Number of buffers in use."""
        return self._used

    def rewind(self, mark: int = 0) -> None:
        """Frees every buffer taken after `mark` was noted."""
        self._used = mark

    def take(self, like: Tensor, *shape: int) -> Tensor:
        """Returns an uninitialised contiguous tensor with the type and device of `like`."""
        i, size = self._used, math.prod(shape)
        if i == len(self._buffers):
            self._buffers.append(like.new_empty(size))
            self._views.append({})
        buffer, views = self._buffers[i], self._views[i]
        if buffer.numel() < size or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[i] = like.new_empty(size)
            views.clear()
        if shape not in views:
            views[shape] = buffer[:size].view(shape)
        self._used += 1
        return views[shape]
