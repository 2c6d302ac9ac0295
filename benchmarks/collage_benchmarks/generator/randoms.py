"""Operators that draw numbers: two runs agree in shape and range only."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from collage_benchmarks.generator.builder import FLOATS, Builder
from collage_benchmarks.generator.domains import Domain
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()


@FAMILY.add("RandomNormal", "RandomUniform", random=True)
def random(b: Builder, op: str) -> None:
    shape = b.shape(1, 4, 256)
    to = b.choice([None, TensorProto.FLOAT, TensorProto.DOUBLE])
    b.node(op, [], shape=shape, dtype=to, **_spread(b, op))


@FAMILY.add("RandomNormalLike", "RandomUniformLike", random=True)
def random_like(b: Builder, op: str) -> None:
    x = b.some(b.dtype(op, None, (*FLOATS, "int64", "int32")))
    to = b.choice([TensorProto.FLOAT, TensorProto.DOUBLE, *([None] if x.dtype in FLOATS else [])])
    b.node(op, [x], dtype=to, **_spread(b, op))


def _spread(b: Builder, op: str) -> dict[str, Any]:
    names = ("mean", "scale") if op.startswith("RandomNormal") else ("low", "high")
    return {
        **dict(zip(names, b.choice([(None, None), (0.0, 2.0)]), strict=True)),
        "seed": b.choice([None, 3.0]),
    }


@FAMILY.add("Bernoulli", random=True)
def bernoulli(b: Builder) -> None:
    x = b.some(b.dtype("Bernoulli"), domain=Domain(0, 1))
    b.node("Bernoulli", [x], seed=b.choice([None, 3.0]), dtype=b.choice([None, TensorProto.INT64]))


@FAMILY.add("Multinomial", random=True)
def multinomial(b: Builder) -> None:
    x = b.operand(b.dtype("Multinomial", None, FLOATS), (b.integer(1, 3), b.integer(2, 5)))
    count = b.choice([None, 1, 4])
    b.node("Multinomial", [x], sample_size=count, seed=b.choice([None, 3.0]))
