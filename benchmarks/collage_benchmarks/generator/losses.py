"""Losses: they end the forward pass of models in training."""

from __future__ import annotations

from typing import Any

from collage_benchmarks.generator.builder import FLOATS, Builder, Value
from collage_benchmarks.generator.domains import POSITIVE
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()


@FAMILY.add("NegativeLogLikelihoodLoss")
def likelihood(b: Builder) -> None:
    x, operands = _labelled(b, "NegativeLogLikelihoodLoss")
    b.node("NegativeLogLikelihoodLoss", [x, *operands], **_attributes(b))


@FAMILY.add("SoftmaxCrossEntropyLoss")
def cross_entropy(b: Builder) -> None:
    x, operands = _labelled(b, "SoftmaxCrossEntropyLoss")
    outputs = [True, True] if b.flag() else 1
    b.node("SoftmaxCrossEntropyLoss", [x, *operands], outputs, **_attributes(b))


def _labelled(b: Builder, op: str) -> tuple[Value, list[Value | None]]:
    """Scores of classes on axis 1, the right classes (the first two are certain), and weights perhaps."""
    classes = b.integer(2, 5)
    shape = (b.integer(2, 3), classes, *b.shape(0, 2, 16))
    x = b.operand(b.dtype(op, None, FLOATS), shape)
    labels = b.rng.integers(0, classes, (shape[0], *shape[2:])).astype(b.choice(["int64", "int32"]))
    labels.reshape(-1)[:2] = (0, 1)  # whichever is ignored, another is left to divide by
    weights = b.operand(x.dtype, (classes,), POSITIVE) if b.flag() else None
    return x, [b.input(labels), weights]


def _attributes(b: Builder) -> dict[str, Any]:
    reduction = b.choice([None, "none", "sum", "mean"])
    return {"reduction": reduction, "ignore_index": b.choice([None, 0, -1])}
