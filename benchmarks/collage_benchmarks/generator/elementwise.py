"""Operators that compute each element from those at the same place."""

from __future__ import annotations

import numpy as np
from onnx import helper

from collage_benchmarks.generator.builder import FLOATS, Builder, Value
from collage_benchmarks.generator.domains import ABOVE_ONE, ANY, INSIDE_ONE, NONZERO, POSITIVE, Domain
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()

_UNARY = {
    "Abs": ANY,
    "Acos": INSIDE_ONE,
    "Acosh": ABOVE_ONE,
    "Asin": INSIDE_ONE,
    "Asinh": ANY,
    "Atan": ANY,
    "Atanh": INSIDE_ONE,
    "Cos": ANY,
    "Cosh": ANY,
    "Erf": ANY,
    "Exp": ANY,
    "HardSwish": Domain(-5, 5),
    "Identity": ANY,
    "Log": POSITIVE,
    "Mish": ANY,
    "Neg": ANY,
    "Reciprocal": NONZERO,
    "Relu": ANY,
    "Sigmoid": Domain(-8, 8),
    "Sin": ANY,
    "Sinh": ANY,
    "Softplus": Domain(-8, 8),
    "Softsign": ANY,
    "Sqrt": POSITIVE,
    "Tan": Domain(-1.2, 1.2),
    "Tanh": Domain(-4, 4),
}
_STEPS = ("Ceil", "Floor", "Round", "Sign")
_BINARY = {"Add": ANY, "Mul": ANY, "Sub": ANY, "Div": NONZERO}
_CASTABLE = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")


@FAMILY.add(*_UNARY)
def unary(b: Builder, op: str) -> None:
    b.node(op, [b.some([b.dtype(op)], domain=_UNARY[op])])


@FAMILY.add(*_STEPS)
def step(b: Builder, op: str) -> None:
    b.node(op, [b.some([b.dtype(op)], exact=True, domain=Domain(-5, 5))])


@FAMILY.add("Elu", "LeakyRelu", "ThresholdedRelu", "Celu", "Swish")
def alpha(b: Builder, op: str) -> None:
    exact = op == "ThresholdedRelu"  # which jumps at its threshold
    alphas = (None, 0.5, 1.0, 1.5) if op in ("Celu", "ThresholdedRelu") else (None, 0.0, 0.25, 1.5, -0.5)
    b.node(op, [b.some([b.dtype(op)], exact=exact)], alpha=b.choice(alphas))


@FAMILY.add("Gelu")
def gelu(b: Builder) -> None:
    b.node("Gelu", [b.some([b.dtype("Gelu")])], approximate=b.choice([None, "none", "tanh"]))


@FAMILY.add("HardSigmoid")
def hard_sigmoid(b: Builder) -> None:
    x = b.some([b.dtype("HardSigmoid")])
    b.node("HardSigmoid", [x], alpha=b.choice([None, 0.1, 1.0]), beta=b.choice([None, 0.0, 0.25]))


@FAMILY.add("Selu")
def selu(b: Builder) -> None:
    x = b.some([b.dtype("Selu")])
    b.node("Selu", [x], alpha=b.choice([None, 1.0, 2.0]), gamma=b.choice([None, 0.5, 1.5]))


@FAMILY.add("Shrink")
def shrink(b: Builder) -> None:
    x = b.some([b.dtype("Shrink")], exact=True)
    b.node("Shrink", [x], lambd=b.choice([None, 0.0, 0.25, 1.0]), bias=b.choice([None, 0.0, 0.5]))


@FAMILY.add("PRelu")
def prelu(b: Builder) -> None:
    x = b.some([b.dtype("PRelu")])
    b.node("PRelu", [x, b.operand(x.dtype, b.broadcastable(x.shape))])


@FAMILY.add("Clip")
def clip(b: Builder) -> None:
    x = b.some([b.dtype("Clip")], domain=Domain(-5, 5))
    low, high = b.choice([(0, 6), (0, 1), (1, 3), (2, 2), (0, 4)])
    if np.dtype(x.dtype).kind != "u" and b.flag():
        low = -high
    ends: list[Value | None] = [b.constant(np.asarray(e, x.dtype)) if b.flag() else None for e in (low, high)]
    b.node("Clip", [x, *ends])


@FAMILY.add(*_BINARY)
def binary(b: Builder, op: str) -> None:
    x, y = pair(b, b.dtype(op), _BINARY[op])
    b.node(op, [x, y])


@FAMILY.add("Pow")
def power(b: Builder) -> None:
    dtype = b.dtype("Pow")
    other = b.dtype("Pow", "T1", FLOATS if dtype in FLOATS else None)
    whole = np.dtype(dtype).kind in "iu" or np.dtype(other).kind in "iu"
    x = b.some([dtype], domain=POSITIVE)
    exponents = Domain(0, 3) if whole else Domain(-2, 3)
    b.node("Pow", [x, b.operand(other, b.broadcastable(x.shape), exponents)])


@FAMILY.add("Max", "Min", "Mean", "Sum")
def variadic(b: Builder, op: str) -> None:
    x = b.some([b.dtype(op)])
    others = [b.operand(x.dtype, b.broadcastable(x.shape)) for _ in range(b.integer(0, 3))]
    operands = b.permuted([x, *others])
    b.node(op, operands)


@FAMILY.add("Where")
def where(b: Builder) -> None:
    x, y = pair(b, b.dtype("Where", "T"))
    shape = np.broadcast_shapes(x.shape, y.shape)
    b.node("Where", [b.operand("bool", b.broadcastable(shape)), x, y])


@FAMILY.add("Cast")
def cast(b: Builder) -> None:
    x = castable(b, "Cast")
    b.node("Cast", [x], to=_element(b.choice([d for d in _CASTABLE if d in b.dtypes])))


@FAMILY.add("CastLike")
def cast_like(b: Builder) -> None:
    x = castable(b, "CastLike")
    like = b.some([d for d in _CASTABLE if d in b.dtypes], 0, 2)
    b.node("CastLike", [x, like])


@FAMILY.add("IsNaN", "IsInf")
def special(b: Builder, op: str) -> None:
    """Some elements are what is asked for, so the input is never one that exists."""
    dtype = b.dtype(op, None, FLOATS)
    numbers = ANY.sample(b.rng, dtype, b.shape())
    chosen = np.asarray(b.rng.integers(0, 4, numbers.shape))
    strange = np.nan if op == "IsNaN" else np.where(numbers > 0, np.inf, -np.inf)
    x = b.input(np.where(chosen == 0, strange, numbers).astype(dtype))
    if op == "IsNaN":
        b.node(op, [x])
        return
    positive, negative = b.choice([(None, None), (1, 0), (0, 1), (0, 0), (1, 1)])
    b.node(op, [x], detect_positive=positive, detect_negative=negative)


@FAMILY.add("Dropout")
def dropout(b: Builder) -> None:
    x = b.some([b.dtype("Dropout")])
    ratio = b.constant(np.asarray(b.choice([0.0, 0.25, 0.5]), "float32")) if b.flag() else None
    training = b.constant(np.asarray(False)) if b.flag() else None
    b.node("Dropout", [x, ratio, training], [True, b.flag()], seed=b.choice([None, 7]))


def pair(b: Builder, dtype: str, domain: Domain = ANY, *, exact: bool = False) -> tuple[Value, Value]:
    """Two values of a dtype that broadcast to each other, in either order or both ways."""
    whole = b.some([dtype], domain=domain, exact=exact)
    other = b.operand(dtype, b.broadcastable(whole.shape), domain, exact=exact)
    if b.one_in(4) and whole.rank > 1 and other.shape:
        mixed = tuple(1 if b.flag() else s for s in whole.shape)
        whole = b.operand(dtype, mixed, domain, exact=exact)
    return (other, whole) if b.flag() else (whole, other)


def castable(b: Builder, op: str) -> Value:
    """Numbers that every dtype holds, as far as a cast keeps them: none that is negative or too large."""
    return b.some(b.dtype(op, "T1", _CASTABLE), exact=True, domain=Domain(0, 100))


def _element(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
