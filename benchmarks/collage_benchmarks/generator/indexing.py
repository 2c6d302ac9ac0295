"""Operators that take elements by index, or tell indices."""

from __future__ import annotations

import numpy as np

from collage_benchmarks.generator.builder import Builder, Value
from collage_benchmarks.generator.domains import DISTINCT, Domain
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY", "indices"]

FAMILY = Family()


def indices(b: Builder, size: int, shape: tuple[int, ...], dtype: str | None = None) -> Value:
    """Positions on an axis of that size, from either end: constants, or the model's input."""
    dtype = dtype or b.choice(["int64", "int32"])
    array = b.rng.integers(-size if b.flag() else 0, size, shape).astype(dtype)
    return b.input(array) if b.flag() else b.constant(array)


@FAMILY.add("Gather")
def gather(b: Builder) -> None:
    x = b.some(b.dtype("Gather"), 1, 4, fits=lambda v: 0 not in v.shape)
    axis = b.axis(x.rank)
    places = indices(b, x.shape[axis], b.shape(0, 2, 32))
    b.node("Gather", [x, places], axis=None if axis == 0 and b.flag() else axis)


@FAMILY.add("GatherElements")
def gather_elements(b: Builder) -> None:
    x = b.some(b.dtype("GatherElements"), 1, 4, fits=lambda v: 0 not in v.shape)
    axis = b.axis(x.rank)
    shape = [b.integer(1, s) for s in x.shape]
    shape[axis] = b.integer(1, 6)
    b.node("GatherElements", [x, indices(b, x.shape[axis], tuple(shape))], axis=axis)


@FAMILY.add("GatherND")
def gather_nd(b: Builder) -> None:
    x = b.some(b.dtype("GatherND"), 1, 4, fits=lambda v: 0 not in v.shape)
    batch = b.integer(0, min(1, x.rank - 1))
    depth = b.integer(1, x.rank - batch)
    shape = (*x.shape[:batch], *b.shape(1, 2, 16), depth)
    low = b.flag()
    columns = [b.rng.integers(-s if low else 0, s, shape[:-1]) for s in x.shape[batch : batch + depth]]
    array = np.stack(columns, axis=-1).astype("int64")
    places = b.input(array) if b.flag() else b.constant(array)
    b.node("GatherND", [x, places], batch_dims=batch if batch or b.flag() else None)


@FAMILY.add("OneHot")
def one_hot(b: Builder) -> None:
    depth = b.integer(2, 7)
    places = indices(b, depth, b.shape(1, 3, 64), b.choice(["int64", "int32"]))
    kind = b.choice(["int64", "int32", "float32"])
    rank = places.rank + 1
    values = b.constant(
        np.asarray([b.integer(0, 1), b.integer(2, 5)], b.choice(["float32", "int64", "int32"]))
    )
    size = b.constant(np.asarray([depth] if b.flag() else depth, kind))
    b.node("OneHot", [places, size, values], axis=None if b.one_in(3) else b.axis(rank))


@FAMILY.add("TopK")
def top(b: Builder) -> None:
    """What is not sorted has no order, so all are sorted."""
    x = b.some(b.dtype("TopK"), 1, 4, DISTINCT)
    axis = b.axis(x.rank)
    k = b.parameter([b.integer(1, max(1, x.shape[axis]))])
    told = None if axis in (-1, x.rank - 1) and b.flag() else axis
    b.node("TopK", [x, k], 2, axis=told, largest=b.choice([None, 0, 1]), sorted=b.choice([None, 1]))


@FAMILY.add("Compress", dynamic=True)
def compress(b: Builder) -> None:
    x = b.some(b.dtype("Compress"), 1, 4)
    axis = b.axis(x.rank) if b.flag() else None
    size = int(np.prod(x.shape)) if axis is None else x.shape[axis]
    condition = b.rng.integers(0, 2, b.integer(1, size)).astype(bool)
    b.node("Compress", [x, b.input(condition) if b.flag() else b.constant(condition)], axis=axis)


@FAMILY.add("NonZero", dynamic=True)
def non_zero(b: Builder) -> None:
    b.node("NonZero", [b.some(b.dtype("NonZero"), 1, 4, exact=True)])


@FAMILY.add("Unique", dynamic=True)
def unique(b: Builder) -> None:
    x = b.some(b.dtype("Unique"), 1, 3, Domain(0, 3), exact=True)
    axis = b.axis(x.rank) if b.flag() else None
    outputs = [True, *(b.flag() for _ in range(3))]
    # Others only `onnx.reference` runs, and it does not know them unsorted.
    order = b.choice([None, 0, 1]) if x.dtype in ("float32", "float64", "int8", "int64") else None
    b.node("Unique", [x], outputs, axis=axis, sorted=order)


@FAMILY.add("NonMaxSuppression", dynamic=True)
def suppress(b: Builder) -> None:
    """Boxes of different scores on a grid: no overlap is near the limit."""
    batch, classes, count = b.sizes((1, 2), (1, 3), (1, 7))
    corners = b.rng.integers(0, 6, (batch, count, 2)).astype("float32")
    form = b.choice([None, 0, 1])
    sizes = b.rng.integers(1, 5, (batch, count, 2)).astype("float32")
    boxes = np.concatenate([corners, corners + (0 if form == 1 else sizes)], axis=2)
    if form == 1:
        boxes[:, :, 2:] = sizes
    scores = DISTINCT.sample(b.rng, "float32", (batch, classes, count))
    limits: list[Value | None] = [
        b.constant(np.asarray([b.integer(0, 4)], "int64")) if b.one_in(5) is False else None,
        b.constant(np.asarray([b.choice([0.0, 0.37, 0.61])], "float32")) if b.flag() else None,
        b.constant(np.asarray([b.choice([-0.1171, 0.0039])], "float32")) if b.flag() else None,
    ]
    b.node("NonMaxSuppression", [b.input(boxes), b.input(scores), *limits], center_point_box=form)
