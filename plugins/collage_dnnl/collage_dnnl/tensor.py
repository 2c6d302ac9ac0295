"""Strided views of values: what memory descriptors are made from, and how dimensions are merged and
reordered.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from collage_run.formats import Format, Layout

__all__ = ["FP32", "WHOLE_NUMBERS", "Groups", "Tensor", "collapse", "dense", "operand_format", "regroup"]

FP32 = "float32"
"""In which oneDNN accumulates, and takes whatever is constant but for weights."""

WHOLE_NUMBERS = frozenset(["int8", "uint8"])
"""What it multiplies in quantised models, and moves."""

Groups = Sequence[Sequence[int]]
"""For every dimension of a result the dimensions that are merged into it, outermost first; an empty one
inserts a 1.
"""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Sizes and strides (in elements) of the dimensions, and the type of the elements."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = FP32

    @property
    def rank(self) -> int:
        return len(self.dims)

    def permuted(self, order: Sequence[int]) -> Tensor:
        """The same elements with dimension i of the result being dimension order[i]."""
        dims, strides = tuple(self.dims[d] for d in order), tuple(self.strides[d] for d in order)
        return replace(self, dims=dims, strides=strides)

    def expanded(self, rank: int) -> Tensor:
        """Dimensions of size 1 put in front, up to `rank`."""
        missing = rank - self.rank
        whole = math.prod(self.dims)
        return replace(self, dims=(1,) * missing + self.dims, strides=(whole,) * missing + self.strides)


def dense(shape: Sequence[int], layout: Layout, dtype: str = FP32) -> Tensor:
    """A dense tensor stored in the order of `layout`. Dimensions of size 1 get the strides that the order
    gives them.
    """
    strides = [0] * len(shape)
    stride = 1
    for d in reversed(layout):
        strides[d] = stride
        stride *= shape[d]
    return Tensor(tuple(shape), tuple(strides), dtype)


def operand_format(dtype: str, shape: Sequence[int], layout: Layout) -> Format:
    """Of an operand that broadcasts to a value of `layout`: that order, as far as `shape` goes."""
    missing = len(layout) - len(shape)
    return Format.of(dtype, shape, [d - missing for d in layout if d >= missing])


def collapse(
    shape: Sequence[int], layout: Layout, operands: Sequence[Tensor], barriers: Collection[int] = ()
) -> list[list[int]]:
    """The fewest groups of dimensions of a value of `shape` stored in the order of `layout`, in that order,
    such that every operand (of the value's rank) is full or broadcast as a whole in each. Dimensions among
    `barriers` stay alone and are kept even at size 1.
    """
    groups: list[list[int]] = []
    previous: tuple[bool, ...] | None = None
    for d in layout:
        if d in barriers:
            groups.append([d])
            previous = None
            continue
        if shape[d] == 1:
            continue
        pattern = tuple(o.dims[d] == 1 for o in operands)
        if pattern == previous:
            groups[-1].append(d)
        else:
            groups.append([d])
            previous = pattern
    return groups or [[]]


def regroup(tensor: Tensor, groups: Groups) -> Tensor | None:
    """The tensor with its dimensions merged as `groups` says; None where strides forbid it. Dimensions in no
    group have size 1.
    """
    dims: list[int] = []
    strides: list[int] = []
    for group in groups:
        size, stride = 1, 0
        for d in reversed(group):
            if tensor.dims[d] == 1:
                continue
            if size == 1:
                size, stride = tensor.dims[d], tensor.strides[d]
            elif tensor.strides[d] == size * stride:
                size *= tensor.dims[d]
            else:
                return None
        dims.append(size)
        strides.append(stride)
    # Strides of inserted dimensions are those of a dense tensor, which the library recognises.
    below = 1
    for i in range(len(dims) - 1, -1, -1):
        if strides[i] == 0:
            strides[i] = below
        below = max(below, dims[i] * strides[i])
    return Tensor(tuple(dims), tuple(strides), tensor.dtype)
