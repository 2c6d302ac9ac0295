"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_benchmarks.generator.builder import FLOATS, Builder, Value
from collage_benchmarks.generator.domains import INSIDE_ONE
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {
    "RNN": (["Tanh"], ["Relu"]),
    "GRU": (["Sigmoid", "Tanh"], ["Sigmoid", "Relu"]),
    "LSTM": (["Sigmoid", "Tanh", "Tanh"], ["Sigmoid", "Relu", "Tanh"]),
}


@FAMILY.add(*_GATES)
def recurrent(b: Builder, op: str) -> None:
    """One layer in either direction or both, with what may be left out left out at times."""
    dtype = b.dtype(op, None, FLOATS)
    direction = b.choice([None, "forward", "reverse", "bidirectional"])
    both = 2 if direction == "bidirectional" else 1
    length, batch, width, hidden = b.sizes((1, 4), (1, 3), (1, 4), (1, 4))
    batch_first = b.opset >= 14 and b.one_in(4)
    gates = _GATES[op]
    x = _small(b, dtype, (batch, length, width) if batch_first else (length, batch, width))
    operands: list[Value | None] = [
        x,
        _small(b, dtype, (both, gates * hidden, width)),
        _small(b, dtype, (both, gates * hidden, hidden)),
        _small(b, dtype, (both, 2 * gates * hidden)) if b.flag() else None,
    ]
    lengths = np.asarray([b.integer(1, length) for _ in range(batch)], "int32")
    operands.append(b.constant(lengths) if b.one_in(3) else None)
    state = (batch, both, hidden) if batch_first else (both, batch, hidden)
    operands.append(_small(b, dtype, state) if b.flag() else None)
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "LSTM":
        operands.append(_small(b, dtype, state) if operands[-1] and b.flag() else None)
        operands.append(_small(b, dtype, (both, 3 * hidden)) if b.one_in(3) else None)
        attributes["input_forget"] = b.choice([None, 0, 1])
    if op == "GRU":
        attributes["linear_before_reset"] = b.choice([None, 0, 1])
    if b.one_in(3):
        attributes["activations"] = b.choice(_ACTIVATIONS[op]) * both
    if b.one_in(4):
        attributes["clip"] = 0.5
    if b.opset >= 14:
        attributes["layout"] = 1 if batch_first else b.choice([None, 0])
    outputs = [b.flag() for _ in range(3 if op == "LSTM" else 2)]
    if not any(outputs):
        outputs[0] = True
    while not outputs[-1]:
        outputs.pop()
    b.node(op, operands, outputs, **attributes)


def _small(b: Builder, dtype: str, shape: tuple[int, ...]) -> Value:
    return b.operand(dtype, shape, INSIDE_ONE)
