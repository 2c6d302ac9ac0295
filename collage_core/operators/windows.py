"""Geometry of sliding windows, as ONNX defines it for convolution and pooling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Tensor", "TransposedWindows", "Windows", "accumulator", "inner", "strided"]

Tensor = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the spatial dimensions of a value [N, C, D1...Dn].

    head and tail: elements of padding before and after; output: number of windows. All per spatial dimension.
    overrun: elements that the last window reads past the tail padding (only `ceil_mode` makes it positive).
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    head: tuple[int, ...]
    tail: tuple[int, ...]
    output: tuple[int, ...]

    @classmethod
    def of(
        cls,
        size: Sequence[int],
        kernel: Sequence[int],
        *,
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        auto_pad: str | None = None,
        ceil_mode: bool = False,
    ) -> Windows:
        """From the attributes of Conv, MaxPool and AveragePool; None stands for an absent attribute."""
        rank = len(size)
        strides = tuple(strides or (1,) * rank)
        dilations = tuple(dilations or (1,) * rank)
        span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            output = [-(-n // s) for n, s in zip(size, strides, strict=True)]
            total = [
                max(0, (o - 1) * s + e - n) for o, s, e, n in zip(output, strides, span, size, strict=True)
            ]
            less, more = [t // 2 for t in total], [t - t // 2 for t in total]
            head, tail = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
        else:
            explicit = list(pads) if pads and auto_pad != "VALID" else [0] * (2 * rank)
            head, tail = explicit[:rank], explicit[rank:]
            output = []
            for n, s, e, h, t in zip(size, strides, span, head, tail, strict=True):
                free = n + h + t - e
                count = (-(-free // s) if ceil_mode else free // s) + 1
                if auto_pad == "VALID":
                    count = free // s + 1  # "ceil((input - kernel + 1) / stride)", whatever the mode
                elif ceil_mode and (count - 1) * s >= n + h:
                    count -= 1  # a window that starts in the tail padding sees no element
                output.append(count)
        return cls(
            tuple(size), tuple(kernel), strides, dilations, tuple(head), tuple(tail), tuple(map(int, output))
        )

    @property
    def overrun(self) -> tuple[int, ...]:
        padded = [h + n + t for h, n, t in zip(self.head, self.size, self.tail, strict=True)]
        last = [(o - 1) * s for o, s in zip(self.output, self.strides, strict=True)]
        span = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        return tuple(max(0, start + e - p) for start, e, p in zip(last, span, padded, strict=True))

    def pad(self, x: Tensor, fill: object, overrun_fill: object | None = None) -> Tensor:
        """`x` with its padding, and as much more as the last window reads."""
        extra = self.overrun
        if overrun_fill is None:
            tail = [t + e for t, e in zip(self.tail, extra, strict=True)]
            return _padded(x, self.head, tail, fill)
        return _padded(_padded(x, self.head, self.tail, fill), [0] * len(extra), extra, overrun_fill)

    def taps(self, padded: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """For every kernel position: its index, and a view [N, C, *output] of what the windows read there."""
        for position in product(*map(range, self.kernel)):
            yield position, padded[inner(map(strided, position, self.dilations, self.output, self.strides))]


def _padded(x: Tensor, head: Sequence[int], tail: Sequence[int], fill: object) -> Tensor:
    if not any(head) and not any(tail):
        return x
    shape = [*x.shape[:2], *(h + n + t for h, n, t in zip(head, x.shape[2:], tail, strict=True))]
    result = np.full(shape, fill, x.dtype)
    result[inner(slice(h, h + n) for h, n in zip(head, x.shape[2:], strict=True))] = x
    return result


def inner(cuts: Iterable[slice]) -> tuple[Any, ...]:
    """An index that cuts the innermost dimensions and leaves those before them whole."""
    return (..., *cuts)


def strided(position: int, dilation: int, count: int, stride: int) -> slice:
    """What `count` windows read, or transposed windows write, at one kernel position of one dimension."""
    start = position * dilation
    return slice(start, start + (count - 1) * stride + 1, stride)


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What sums are kept in: half-width floats have neither the digits nor a BLAS."""
    return np.dtype(np.float32) if dtype.itemsize < 4 and dtype.kind not in "iub" else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposedWindows:
    """How ConvTranspose's windows lie: the node's attributes, None where it has none."""

    strides: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    auto_pad: str | None = None
    output_padding: Sequence[int] | None = None
    output_shape: Sequence[int] | None = None

    def extent(self, size: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Of spatial sizes: elements cut off before each dimension, the dimension's size, and what all taps
        cover.
        """
        rank = len(size)
        strides, dilations = (given or [1] * rank for given in (self.strides, self.dilations))
        extra = self.output_padding or [0] * rank
        span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        full = [(n - 1) * s + e for n, s, e in zip(size, strides, span, strict=True)]
        if self.output_shape is None and self.auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
            pads = self.pads if self.pads and self.auto_pad != "VALID" else [0] * (2 * rank)
            sizes = [f + a - h - t for f, a, h, t in zip(full, extra, pads[:rank], pads[rank:], strict=True)]
            return list(pads[:rank]), sizes, full
        whole = [f + a for f, a in zip(full, extra, strict=True)]
        if self.output_shape is None:
            # Where the stride is larger than the kernel, no padding of 0 or more makes it input * stride.
            output = [min(w, n * s) for w, n, s in zip(whole, size, strides, strict=True)]
        else:
            output = list(self.output_shape)[-rank:]
        total = [max(0, w - o) for w, o in zip(whole, output, strict=True)]
        return [t // 2 if self.auto_pad == "SAME_UPPER" else t - t // 2 for t in total], output, full
