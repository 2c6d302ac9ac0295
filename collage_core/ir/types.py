"""Values and nodes: the two things a graph is made of."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collage_run.types import Dim, TensorType

__all__ = ["UNKNOWN", "Attribute", "Dim", "Node", "TensorType", "Value", "ValueKind"]

Attribute = Any
"""int, float, str, tuple of those, numpy array, onnx.TypeProto, or a Graph: the body of an If, Loop, Scan or
region.
"""


UNKNOWN = TensorType("", ("?",))
"""Type of a value that shape inference says nothing about (yet)."""


class ValueKind(enum.Enum):
    """Where a value comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    STATE = "state"
    INTERMEDIATE = "intermediate"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in the graph, known by the name that the source model gives it."""

    name: str
    type: TensorType
    kind: ValueKind


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One ONNX operator applied to values. `id` is unique in its graph and survives every pass, as does
    `name`.

    `inputs` holds value names, "" where an optional input is absent; `outputs` likewise.
    `domain` is "" for the operators of ONNX itself.
    `captures`: what the node's bodies read from outside, under the names that they know it by. The values
    themselves are the last entries of `inputs`, in the same order: a pass may rename those.
    """

    id: int
    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    captures: tuple[str, ...] = ()

    @property
    def formal_inputs(self) -> tuple[str, ...]:
        """What the operator itself is given, without what its bodies read."""
        return self.inputs[: len(self.inputs) - len(self.captures)]

    @property
    def captured(self) -> dict[str, str]:
        """Name in the bodies -> name of the value in the graph."""
        return dict(zip(self.captures, self.inputs[len(self.inputs) - len(self.captures) :], strict=True))

    @property
    def qualified_op(self) -> str:
        """The operator with its domain, where that is not ONNX's own."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    def __str__(self) -> str:
        return f"{self.name} ({self.qualified_op})"
