"""Formats: how the elements of a value lie in memory.

A layout is a permutation of the logical dimensions, outermost first: a 4-D value in logical order N, C, H, W
that is stored channels-last has layout (0, 2, 3, 1). Buffers are dense in that order. Dimensions of size 1 do
not move any byte, so layouts are kept in a canonical form in which two layouts that mean the same bytes are
equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "BFLOAT16",
    "CPU",
    "FLOATS",
    "Array",
    "Format",
    "Layout",
    "byte_strides",
    "canonical_layout",
    "channels_last",
    "device_of",
    "element_strides",
    "empty",
    "own",
    "plain",
    "row_major_bytes",
    "view",
]

Layout = tuple[int, ...]
"""The logical dimensions, outermost first."""

Array = npt.NDArray[Any]
"""A numpy array of any shape and dtype."""


CPU = "cpu"
"""The host's own processor, where a model's inputs and outputs lie."""

BFLOAT16 = "bfloat16"
"""The upper half of a float32: its range, and 8 bits of its precision."""

FLOATS = (BFLOAT16, "float16", "float32", "float64")
"""Types of real numbers: a value of one of them can be stored as another, rounded to it."""


def canonical_layout(shape: Sequence[int], layout: Sequence[int]) -> Layout:
    """The one layout that stands for all those which store `shape` in the same bytes as `layout` does.

    Moving a dimension of size 1 changes no address, so such dimensions go where the plain order has them, as
    far as the order of the others allows: they are put in front, in ascending order, when the others are in
    order as well, and the result is the plain layout.

    >>> canonical_layout((1, 2048, 1, 1), (0, 2, 3, 1))
    (0, 1, 2, 3)
    >>> canonical_layout((1, 64, 56, 56), (0, 2, 3, 1))
    (0, 2, 3, 1)
    """
    if sorted(layout) != list(range(len(shape))):
        raise ValueError(
            f"layout {tuple(layout)} is not a permutation of the {len(shape)} dimensions of {tuple(shape)}"
        )
    moving = [d for d in layout if shape[d] != 1]
    result: list[int] = []
    ones = [d for d in range(len(shape)) if shape[d] == 1]
    for d in moving:
        while ones and ones[0] < d:
            result.append(ones.pop(0))
        result.append(d)
    return tuple(result + ones)


@dataclass(frozen=True, slots=True)
class Format:
    """How one value is stored: numpy dtype name, canonical layout, and the device whose memory it lies in.

    Make formats with `Format.of`, `plain` or `channels_last`, which canonicalise the layout for the shape.
    """

    dtype: str
    layout: Layout
    device: str = CPU

    @classmethod
    def of(cls, dtype: str, shape: Sequence[int], layout: Sequence[int], device: str = CPU) -> Format:
        return cls(dtype, canonical_layout(shape, layout), device)

    @property
    def is_plain(self) -> bool:
        """Whether the elements lie in the logical (row-major) order."""
        return self.layout == tuple(range(len(self.layout)))

    def can_store(self, dtype: str, rank: int) -> bool:
        """Whether a value of that type and number of dimensions can lie in memory like this: as it is, or, of
        a float, as another float.
        """
        is_rounded = self.dtype in FLOATS and dtype in FLOATS
        return (self.dtype == dtype or is_rounded) and sorted(self.layout) == list(range(rank))

    def size_bytes(self, shape: Sequence[int]) -> int:
        """What a value of logical `shape` takes in memory."""
        return math.prod(shape) * np.dtype(self.dtype).itemsize

    def on(self, device: str) -> Format:
        """The same in another device's memory."""
        return Format(self.dtype, self.layout, device)

    def __str__(self) -> str:
        order = "plain" if self.is_plain else "".join(map(str, self.layout))
        return f"{self.dtype}:{order}" + ("" if self.device == CPU else f"@{self.device}")


def plain(dtype: str, shape: Sequence[int], device: str = CPU) -> Format:
    """Row-major in the logical order that ONNX fixes (NCW, NCHW, NCDHW)."""
    return Format(dtype, tuple(range(len(shape))), device)


def channels_last(dtype: str, shape: Sequence[int], device: str = CPU) -> Format:
    """Batch outermost, channels innermost (NWC, NHWC, NDHWC); for shapes of fewer than three dimensions,
    plain.
    """
    if len(shape) < 3:
        return plain(dtype, shape, device)
    return Format.of(dtype, shape, (0, *range(2, len(shape)), 1), device)


def device_of(formats: Iterable[Format]) -> str:
    """Which device works on values in these formats: another one than the host, if any of them lies there."""
    return next((f.device for f in formats if f.device != CPU), CPU)


def byte_strides(shape: Sequence[int], format: Format) -> tuple[int, ...]:
    """From each element to the next, by logical dimension, as NumPy counts."""
    size = np.dtype(format.dtype).itemsize
    return tuple(size * stride for stride in element_strides(shape, format.layout))


def element_strides(shape: Sequence[int], layout: Sequence[int]) -> tuple[int, ...]:
    """The same in elements, of what is dense in that order of its dimensions, outermost first."""
    strides, step = [0] * len(shape), 1
    for d in reversed(layout):
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


def view(buffer: Array, shape: Sequence[int], format: Format) -> Array:
    """`buffer` (uint8, 1-D, at least as large as needed) as an array of logical `shape` whose strides follow
    `format`.
    """
    flat = buffer[: format.size_bytes(shape)].view(np.dtype(format.dtype))
    stored = flat.reshape([shape[d] for d in format.layout])
    return stored.transpose(np.argsort(format.layout)) if format.layout else stored


def empty(shape: Sequence[int], format: Format, alignment: int = 64) -> Array:
    """A new uninitialised array of logical `shape`, its first element aligned to `alignment` bytes."""
    size_bytes = format.size_bytes(shape)
    raw = np.empty(size_bytes + alignment, np.uint8)
    offset = -raw.ctypes.data % alignment
    return view(raw[offset : offset + size_bytes], shape, format)


def own(data: Array) -> Array:
    """A copy, row-major, 64-byte aligned, that keeps nothing else in memory."""
    copy = empty(data.shape, plain(str(data.dtype), data.shape))
    copy[...] = data
    return copy


def row_major_bytes(array: Array) -> memoryview:
    """Its elements, as bytes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
