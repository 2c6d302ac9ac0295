"""Operators that write elements by index."""

from __future__ import annotations

import numpy as np

from collage_benchmarks.generator.builder import FLOATS, INTEGERS, Builder, Value
from collage_benchmarks.generator.family import Family
from collage_core.formats import Array

__all__ = ["FAMILY"]

FAMILY = Family()


@FAMILY.add("ScatterElements")
def scatter_elements(b: Builder) -> None:
    """No place is written twice unless what is written is accumulated."""
    how = _reduction(b)
    x = b.some(_dtype(b, "ScatterElements", how), 1, 4, most=512, fits=lambda v: 0 not in v.shape)
    axis = b.axis(x.rank)
    shape = [b.integer(1, s) for s in x.shape]
    size = x.shape[axis]
    order = b.rng.permuted(
        np.broadcast_to(np.arange(size), (*shape[:axis], *shape[axis:][1:], size)), axis=-1
    )
    places: Array = np.moveaxis(order[..., : shape[axis]], -1, axis).astype(np.int64)
    if b.flag():
        places = places - size * b.rng.integers(0, 2, places.shape)
    if how in ("add", "mul", "max", "min") and b.flag():
        places = b.rng.integers(0, size, places.shape)
    where = _places(b, places, b.choice(["int64", "int32"]))
    updates = b.operand(x.dtype, places.shape)
    b.node("ScatterElements", [x, where, updates], axis=axis, reduction=how)


@FAMILY.add("ScatterND")
def scatter_nd(b: Builder) -> None:
    how = _reduction(b)
    x = b.some(_dtype(b, "ScatterND", how), 1, 4, most=512, fits=lambda v: 0 not in v.shape)
    depth = b.integer(1, x.rank)
    count = int(np.prod(x.shape[:depth]))
    taken = b.rng.permutation(count)[: b.integer(1, min(count, 6))]
    if how is not None and how != "none" and b.flag():
        taken = b.rng.integers(0, count, taken.shape)
    places: Array = np.stack(np.unravel_index(taken, x.shape[:depth]), axis=-1).astype(np.int64)
    if b.flag():
        places = places - np.asarray(x.shape[:depth]) * b.rng.integers(0, 2, places.shape)
    updates = b.operand(x.dtype, (len(taken), *x.shape[depth:]))
    b.node("ScatterND", [x, _places(b, places, "int64"), updates], reduction=how)


@FAMILY.add("TensorScatter")
def tensor_scatter(b: Builder) -> None:
    batch, heads, most, width = b.sizes((1, 2), (1, 3), (3, 7), (1, 4))
    cache = b.operand(b.dtype("TensorScatter"), (batch, heads, most, width))
    length = b.integer(1, most)
    update = b.operand(cache.dtype, (batch, heads, length, width))
    mode = b.choice([None, "linear", "circular"])
    last = most if mode == "circular" else most - length + 1
    start = b.rng.integers(0, last, batch).astype("int64")
    b.node("TensorScatter", [cache, update, b.input(start)], mode=mode, axis=b.choice([None, -2, 2]))


def _reduction(b: Builder) -> str | None:
    known: list[str | None] = [None, "none"]
    if b.opset >= 16:
        known += ["add", "mul"]
    if b.opset >= 18:
        known += ["max", "min"]
    return b.choice(known) if b.opset >= 16 else None


def _dtype(b: Builder, op: str, how: str | None) -> str:
    return b.dtype(op, "T", None if how in (None, "none") else (*FLOATS, *INTEGERS))


def _places(b: Builder, array: Array, dtype: str) -> Value:
    places = array.astype(dtype)
    return b.input(places) if b.flag() else b.constant(places)
