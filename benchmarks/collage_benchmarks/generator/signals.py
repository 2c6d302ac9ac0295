"""Fourier transforms and the windows that go with them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from collage_benchmarks.generator.builder import FLOATS, Builder, Value
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()


@FAMILY.add("DFT")
def transform(b: Builder) -> None:
    """The axis is an attribute before opset 20, an input since."""
    rank = b.integer(1, 3)
    dtype = b.dtype("DFT", "T1", FLOATS)
    shape = (b.integer(1, 2), *(b.choice([2, 3, 4, 7, 16]) for _ in range(rank)))
    inverse, onesided = b.choice([(None, None), (0, 0), (1, 0), (0, 1), (None, 1)])
    parts = 2 if inverse or (not onesided and b.flag()) else 1
    x = b.operand(dtype, (*shape, parts))
    axis = b.integer(1, rank)
    length = b.parameter(shape[axis]) if b.flag() else None
    if b.opset < 20:
        told = None if axis == 1 and b.flag() else axis
        b.node("DFT", [x, length], axis=told, inverse=inverse, onesided=onesided)
        return
    given = None if axis == rank and b.flag() else b.parameter(axis - (x.rank if b.flag() else 0))
    b.node("DFT", [x, length, given], inverse=inverse, onesided=onesided)


@FAMILY.add("STFT")
def short_time(b: Builder) -> None:
    """Whether one side is enough is always said: ONNX's inference takes another default than its text."""
    dtype = b.dtype("STFT", "T1", ("float32", "float64"))
    frame, step = b.choice([4, 8]), b.integer(1, 4)
    x = b.operand(dtype, (b.integer(1, 2), frame + step * b.integer(0, 3), 1))
    window: Value | None = b.operand(dtype, (frame,)) if b.flag() else None
    length = b.parameter(frame) if window is None or b.flag() else None
    b.node("STFT", [x, b.parameter(step), window, length], onesided=b.choice([0, 1]))


@FAMILY.add("HannWindow", "HammingWindow", "BlackmanWindow")
def window(b: Builder, op: str) -> None:
    size = b.parameter(b.integer(2, 17), b.choice(["int64", "int32"]))
    to = b.choice([None, TensorProto.FLOAT, TensorProto.DOUBLE])
    b.node(op, [size], periodic=b.choice([None, 0, 1]), output_datatype=to)


@FAMILY.add("MelWeightMatrix")
def mel(b: Builder) -> None:
    numbers = (b.integer(2, 5), 16, 8000, 0.0 if b.flag() else 125.0, 4000.0)
    bins, length, rate = (b.constant(np.asarray(n, "int64")) for n in numbers[:3])
    low, high = (b.constant(np.asarray(n, "float32")) for n in numbers[3:])
    to = b.choice([None, TensorProto.FLOAT, TensorProto.DOUBLE])
    b.node("MelWeightMatrix", [bins, length, rate, low, high], output_datatype=to)
