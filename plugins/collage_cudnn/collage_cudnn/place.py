"""How values of a group become tensors of cuDNN's: which logical dimensions are merged into which of its own,
and in which order those lie in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage_core.errors import BackendError
from collage_core.formats import Array, Format, Layout, element_strides
from collage_cudnn.description import Tensor

__all__ = ["Place", "collapsed", "image_order", "image_place", "operand_format", "rows_place"]


@dataclass(frozen=True, slots=True)
class Place:
    """shape: of the group's output. groups: for each of cuDNN's dimensions the logical ones that are merged
    into it, outermost first; those that are in none have size 1. order: cuDNN's dimensions as they lie in
    memory, outermost first.
    """

    shape: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.groups)

    def tensor(self, shape: Sequence[int], dtype: str) -> Tensor:
        """A value that broadcasts to the output, stored densely in the order of memory.

        Raises BackendError where it varies over some of the dimensions only that are merged.
        """
        expanded = self._expanded(shape)
        dims = []
        for group in self.groups:
            size = math.prod(expanded[d] for d in group)
            if size not in (1, math.prod(self.shape[d] for d in group)):
                raise BackendError(f"{tuple(shape)} varies over a part of what is merged of {self.shape}")
            dims.append(size)
        return Tensor(tuple(dims), element_strides(dims, self.order), dtype)

    def elements(self, data: Array) -> Array:
        """A constant that broadcasts to the output, as it is to lie in memory."""
        expanded = data.reshape(self._expanded(data.shape))
        merged = [d for i in self.order for d in self.groups[i]]
        rest = [d for d in range(len(self.shape)) if d not in merged]
        return np.ascontiguousarray(expanded.transpose([*rest, *merged]))

    def _expanded(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (1,) * (len(self.shape) - len(shape)) + tuple(shape)


def image_order(rank: int, is_last: bool) -> tuple[int, ...]:
    """The dimensions of an image (batch, channels, space) as they lie in memory."""
    return (0, *range(2, rank), 1) if is_last else tuple(range(rank))


def image_place(shape: Sequence[int], is_last: bool) -> Place:
    """Of images with one to three spatial dimensions; where there is one, a second of size 1 before it."""
    rank = len(shape)
    groups: list[tuple[int, ...]] = [(d,) for d in range(rank)]
    if rank == 3:
        groups = [(0,), (1,), (), (2,)]
    return Place(tuple(shape), tuple(groups), image_order(len(groups), is_last))


def rows_place(shape: Sequence[int]) -> Place:
    """Of row-major rows, as an image of one pixel each: (rows, the last dimension, 1, 1), channels last."""
    leading = tuple(range(len(shape) - 1))
    return Place(tuple(shape), (leading, (len(shape) - 1,), (), ()), image_order(4, True))


def collapsed(shape: Sequence[int], layout: Layout, operands: Sequence[Sequence[int]]) -> Place | None:
    """Of what is elementwise: as few dimensions, in the order of memory, as the operands' broadcasting
    leaves; None if they are more than four. operands: shapes that broadcast to `shape`.
    """
    rank = len(shape)
    expanded = [(1,) * (rank - len(s)) + tuple(s) for s in operands]
    groups: list[list[int]] = []
    before: tuple[bool, ...] | None = None
    for d in layout:
        if shape[d] == 1:
            continue
        varies = tuple(s[d] != 1 for s in expanded)
        if varies == before:
            groups[-1].append(d)
        else:
            groups.append([d])
            before = varies
    if len(groups) > 4:
        return None
    found = [tuple(g) for g in groups]
    if len(found) <= 3:
        missing = 3 - len(found)
        return Place(tuple(shape), ((),) * missing + tuple(found), (0, 1, 2))
    # Four of them are an image, channels last.
    return Place(tuple(shape), (found[0], found[3], found[1], found[2]), image_order(4, True))


def operand_format(dtype: str, shape: Sequence[int], layout: Layout, device: str) -> Format:
    """Of an operand that broadcasts to a value of `layout`: that order, as far as `shape` goes."""
    missing = len(layout) - len(shape)
    return Format.of(dtype, shape, [d - missing for d in layout if d >= missing], device)
