"""Logic, comparisons and the arithmetic of whole numbers."""

from __future__ import annotations

from collage_benchmarks.generator.builder import FLOATS, INTEGERS, Builder
from collage_benchmarks.generator.domains import NONZERO, SMALL, Domain
from collage_benchmarks.generator.elementwise import pair
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()


@FAMILY.add("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def compare(b: Builder, op: str) -> None:
    b.node(op, pair(b, b.dtype(op), exact=True))


@FAMILY.add("And", "Or", "Xor")
def logic(b: Builder, op: str) -> None:
    b.node(op, pair(b, "bool"))


@FAMILY.add("Not")
def negate(b: Builder) -> None:
    b.node("Not", [b.some("bool")])


@FAMILY.add("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(b: Builder, op: str) -> None:
    b.node(op, pair(b, b.dtype(op), Domain(-100, 100)))


@FAMILY.add("BitwiseNot")
def bitwise_not(b: Builder) -> None:
    b.node("BitwiseNot", [b.some(b.dtype("BitwiseNot"), domain=Domain(-100, 100))])


@FAMILY.add("BitShift")
def shift(b: Builder) -> None:
    b.node("BitShift", pair(b, b.dtype("BitShift"), SMALL), direction=b.choice(["LEFT", "RIGHT"]))


@FAMILY.add("Mod")
def modulo(b: Builder) -> None:
    """The sign of `fmod` is the dividend's, that of the other the divisor's: floats have to say which."""
    dtype = b.dtype("Mod", None, (*FLOATS, *INTEGERS))
    x, y = pair(b, dtype, NONZERO, exact=True)
    fmod = 1 if dtype in FLOATS else b.choice([None, 0, 1])
    b.node("Mod", [x, y], fmod=fmod)
