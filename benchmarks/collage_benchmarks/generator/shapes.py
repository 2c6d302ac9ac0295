"""Operators about shapes: they change one, tell one, or make an array of one."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from collage_benchmarks.generator.builder import FLOATS, Builder
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()


@FAMILY.add("Reshape")
def reshape(b: Builder) -> None:
    """Some sizes are written as 0 (as in the input) or -1 (what is left)."""
    x = b.some(b.dtype("Reshape"))
    sizes = _regrouped(b, x.shape)
    allow = b.choice([None, 0, 1]) if b.opset >= 14 else None
    if sizes and b.flag() and not allow:
        i = b.integer(0, len(sizes) - 1)
        if i < x.rank and sizes[i] == x.shape[i] and b.flag():
            sizes[i] = 0
    if sizes and b.flag() and all(x.shape):
        sizes[b.integer(0, len(sizes) - 1)] = -1
    b.node("Reshape", [x, b.parameter(sizes)], allowzero=allow)


def _regrouped(b: Builder, shape: tuple[int, ...]) -> list[int]:
    """Other sizes with the same product: neighbours multiplied, some taken apart, ones added."""
    sizes = list(shape)
    for _ in range(b.integer(0, 3)):
        how = b.integer(0, 2)
        if how == 0 and len(sizes) > 1:
            i = b.integer(0, len(sizes) - 2)
            sizes[i : i + 2] = [sizes[i] * sizes[i + 1]]
        elif how == 1 and len(sizes) < 5:
            sizes.insert(b.integer(0, len(sizes)), 1)
        elif len(sizes) in range(1, 5):
            i = b.integer(0, len(sizes) - 1)
            factor = next((f for f in (2, 3, 7) if sizes[i] and sizes[i] % f == 0), 1)
            sizes[i : i + 1] = [factor, sizes[i] // factor]
    return sizes


@FAMILY.add("Flatten")
def flatten(b: Builder) -> None:
    x = b.some(b.dtype("Flatten"))
    axes = [None, *range(-x.rank, x.rank + 1)] if x.rank else [0]  # 1 by default: no axis of a scalar's
    b.node("Flatten", [x], axis=b.choice(axes))


@FAMILY.add("Squeeze")
def squeeze(b: Builder) -> None:
    x = b.some(b.dtype("Squeeze"), fits=lambda v: 1 in v.shape)
    ones = [i for i, s in enumerate(x.shape) if s == 1]
    if not ones:
        shape = list(x.shape)[:4]
        shape.insert(b.integer(0, len(shape)), 1)
        x = b.operand(x.dtype, shape)
        ones = [i for i, s in enumerate(x.shape) if s == 1]
    chosen = [i for i in ones if b.flag()] or ones[:1]
    axes = [i - x.rank if b.one_in(3) else i for i in chosen]
    b.node("Squeeze", [x, None if b.one_in(4) else b.parameter(axes)])


@FAMILY.add("Unsqueeze")
def unsqueeze(b: Builder) -> None:
    x = b.some(b.dtype("Unsqueeze"), 0, 4)
    count = b.integer(1, 5 - x.rank)
    rank = x.rank + count
    axes = b.permuted(list(range(rank)))[:count]
    b.node("Unsqueeze", [x, b.parameter([a - rank if b.one_in(3) else a for a in axes])])


@FAMILY.add("Expand")
def expand(b: Builder) -> None:
    whole = b.shape(0, 5, 1024)
    x = b.some(b.dtype("Expand"), fits=lambda v: _expands(v.shape, whole))
    if not _expands(x.shape, whole):
        x = b.operand(x.dtype, b.broadcastable(whole))
    asked = [1 if s == 1 or b.one_in(4) else s for s in whole]
    b.node("Expand", [x, b.parameter(asked)])


def _expands(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return len(shape) <= len(whole) and all(
        a in (1, w) for a, w in zip(reversed(shape), reversed(whole), strict=False)
    )


@FAMILY.add("Shape")
def shape(b: Builder) -> None:
    x = b.some(b.dtype("Shape"))
    if b.opset < 15:
        b.node("Shape", [x])
        return
    ends = [None, *range(-x.rank - 1, x.rank + 2)]
    b.node("Shape", [x], start=b.choice(ends), end=b.choice(ends))


@FAMILY.add("Size")
def size(b: Builder) -> None:
    b.node("Size", [b.some(b.dtype("Size"))])


@FAMILY.add("ConstantOfShape")
def constant_of_shape(b: Builder) -> None:
    sizes = b.parameter(b.shape(0, 5, 512))
    value = None
    if b.flag():
        value = numpy_helper.from_array(np.asarray([b.integer(0, 3)], b.dtype("ConstantOfShape", "T2")))
    b.node("ConstantOfShape", [sizes], value=value)


@FAMILY.add("EyeLike")
def eye_like(b: Builder) -> None:
    x = b.some(b.dtype("EyeLike", None, (*FLOATS, "int64", "int32", "uint64")), 2, 2)
    to = b.choice([None, "float32", "float64", "int64", "int32"])
    element = None if to is None else int(helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    b.node("EyeLike", [x], k=b.choice([None, 0, 1, -1, 3]), dtype=element)


@FAMILY.add("Range")
def numbers(b: Builder) -> None:
    dtype = b.dtype("Range")
    start, step = b.integer(0, 3), b.choice([1, 2, 3, -1, -2])
    ends = (start, start + step * b.integer(0, 9), step)
    if np.dtype(dtype).kind == "u":
        ends = (start, start + abs(step) * 4, abs(step))
    b.node("Range", [b.constant(np.asarray(e, dtype)) for e in ends])
