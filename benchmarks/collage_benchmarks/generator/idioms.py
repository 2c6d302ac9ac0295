"""What exporters leave in a model, and what passes know how to take out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import helper

from collage_benchmarks.generator.builder import Builder, Value
from collage_benchmarks.generator.control_flow import branch, loop, scan
from collage_benchmarks.generator.domains import POSITIVE
from collage_core.formats import Array

__all__ = ["IDIOMS"]


_FLOATS = ("float32", "float32", "float64", "float16")


def _float(b: Builder, low: int = 0, high: int = 5) -> Value:
    return b.some(b.choice(_FLOATS), low, high)


def _scalar(b: Builder, number: float, like: Value) -> Value:
    return b.constant(np.asarray(number, like.dtype))


def idle_chain(b: Builder) -> None:
    """Identity, Dropout and a Cast to the same dtype, one after the other."""
    x = _float(b)
    for _ in range(b.integer(1, 3)):
        op = b.choice(["Identity", "Dropout", "Cast"])
        to = int(helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))) if op == "Cast" else None
        x = b.node(op, [x], to=to)[0]


def conv_with_norm(b: Builder) -> None:
    """Conv, BatchNormalization, and an activation perhaps."""
    channels, outside = b.sizes((1, 4), (1, 5))
    kernel = b.choice([1, 3])
    x = b.operand(b.choice(_FLOATS), (1, channels, *b.sizes((3, 7), (3, 7))))
    weights = b.constant(_numbers(b, (outside, channels, kernel, kernel), x))
    bias = b.constant(_numbers(b, (outside,), x)) if b.flag() else None
    pads = [kernel // 2] * 4 if b.flag() else None
    y = b.node("Conv", [x, weights, bias], pads=pads)[0]
    given = [b.constant(_numbers(b, (outside,), x)) for _ in range(3)]
    variance = b.constant(POSITIVE.sample(b.rng, x.dtype, (outside,)))
    y = b.node("BatchNormalization", [y, *given, variance])[0]
    if b.flag():
        b.node(b.choice(["Relu", "LeakyRelu", "Sigmoid"]), [y])


def erf_gelu(b: Builder) -> None:
    """x * (1 + erf(x / sqrt 2)) / 2, its factors in one of several orders."""
    x = _float(b)
    root, one, half = (_scalar(b, n, x) for n in (math.sqrt(2), 1, 0.5))
    inner = b.node("Erf", [b.node("Div", [x, root])[0]])[0]
    total = b.node("Add", b.permuted([inner, one]))[0]
    if b.flag():
        b.node("Mul", b.permuted([b.node("Mul", b.permuted([x, total]))[0], half]))
    else:
        b.node("Mul", b.permuted([b.node("Mul", b.permuted([x, half]))[0], total]))


def tanh_gelu(b: Builder) -> None:
    """The same by its approximation with tanh."""
    x = _float(b)
    three, factor, root, one, half = (_scalar(b, n, x) for n in (3, 0.044715, math.sqrt(2 / math.pi), 1, 0.5))
    cube = b.node("Mul", [factor, b.node("Pow", [x, three])[0]])[0]
    inner = b.node("Tanh", [b.node("Mul", [root, b.node("Add", [x, cube])[0]])[0]])[0]
    b.node("Mul", [b.node("Mul", [x, b.node("Add", [inner, one])[0]])[0], half])


def layer_norm(b: Builder) -> None:
    """Mean, difference, variance, root, quotient, scale and shift."""
    x = b.operand(b.choice(_FLOATS), (*b.shape(0, 3, 16), b.choice([3, 7, 16])))
    axes = [-1] if b.flag() else [x.rank - 1]
    center = b.node("Sub", [x, _mean(b, x, axes)])[0]
    square = b.node("Pow", [center, _scalar(b, 2, x)])[0]
    epsilon = _scalar(b, 1e-3, x)
    root = b.node("Sqrt", [b.node("Add", [_mean(b, square, axes), epsilon])[0]])[0]
    y = b.node("Div", [center, root])[0]
    scale, shift = (b.constant(_numbers(b, x.shape[-1:], x)) for _ in range(2))
    b.node("Add", [b.node("Mul", [y, scale])[0], shift])


def _mean(b: Builder, x: Value, axes: list[int]) -> Value:
    if b.opset < 18:
        return b.node("ReduceMean", [x], axes=axes)[0]
    return b.node("ReduceMean", [x, b.parameter(axes)])[0]


def computed_reshape(b: Builder) -> None:
    """The shape of a Reshape from Shape, Gather and Concat, as dynamic exports have it."""
    x = _float(b, 2, 4)
    shape = b.node("Shape", [x])[0]
    first = b.node("Gather", [shape, b.constant(np.asarray(b.choice([0, -x.rank]), "int64"))], axis=0)[0]
    lead = b.node("Unsqueeze", [first, b.constant(np.asarray([0], "int64"))])[0]
    rest = b.constant(np.asarray([-1], "int64"))
    b.node("Reshape", [x, b.node("Concat", [lead, rest], axis=0)[0]])


def expanded_reduction(b: Builder) -> None:
    """A reduction over all axes, which are counted by Shape, Size and Range."""
    x = _float(b, 1, 4)
    rank = b.node("Size", [b.node("Shape", [x])[0]])[0]
    zero, one = (b.constant(np.asarray(n, "int64")) for n in (0, 1))
    axes = b.node("Range", [zero, rank, one])[0]
    b.node("ReduceSum", [x, axes], keepdims=b.choice([0, 1]))


def masked_softmax(b: Builder) -> None:
    """Scores scaled, masked by a Where on an expanded condition, and their Softmax."""
    x = b.operand(b.choice(_FLOATS), (*b.sizes((1, 2), (1, 3)), *b.sizes((1, 7), (2, 7))))
    mask = b.operand("bool", (1, 1, *x.shape[2:]))
    wide = b.node("Expand", [mask, b.node("Shape", [x])[0]])[0]
    scaled = b.node("Mul", [x, _scalar(b, 0.5, x)])[0]
    low = _scalar(b, -50, x)
    b.node("Softmax", [b.node("Where", [wide, scaled, low])[0]], axis=b.choice([-1, 3]))


def used_twice(b: Builder) -> None:
    """A value that is both operands of the next node, which is a residual's sum as well."""
    x = _float(b)
    y = b.node(b.choice(["Relu", "Tanh", "Neg"]), [x])[0]
    b.node("Add", [b.node("Mul", [y, y])[0], y])


def empty_part(b: Builder) -> None:
    """A value without elements, which is moved, joined to others, or summed up."""
    x = b.operand(b.choice(_FLOATS), (b.integer(1, 3), 0, b.choice([1, 7])))
    y = b.node(b.choice(["Relu", "Neg", "Identity", "Sigmoid"]), [x])[0]
    how = b.integer(0, 2)
    if how == 0:
        other = b.operand(x.dtype, (x.shape[0], 3, x.shape[2]))
        b.node("Concat", b.permuted([y, other]), axis=1)
    elif how == 1:
        b.node("ReduceSum", [y, b.parameter([1])], keepdims=b.choice([0, 1]))
    else:
        b.node("Transpose", [y], perm=b.permuted([0, 1, 2]))


def _numbers(b: Builder, shape: tuple[int, ...], like: Value) -> Array:
    return b.rng.uniform(-1, 1, shape).astype(like.dtype)


IDIOMS: tuple[Callable[[Builder], None], ...] = (
    idle_chain,
    conv_with_norm,
    erf_gelu,
    tanh_gelu,
    layer_norm,
    computed_reshape,
    expanded_reduction,
    masked_softmax,
    used_twice,
    empty_part,
    branch,
    loop,
    scan,
)
