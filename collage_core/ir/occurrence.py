"""A node where it stands: what the graph itself says of it."""

from __future__ import annotations

from dataclasses import dataclass

from collage_core.ir.graph import Graph
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.types import Attribute, Node, TensorType

__all__ = ["Occurrence"]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A node and the graph it stands in."""

    graph: Graph
    node: Node

    @property
    def op_type(self) -> str:
        return self.node.op_type

    @property
    def kind(self) -> OpKind:
        return op_kind(self.graph, self.node)

    def attribute(self, name: str, default: Attribute = None) -> Attribute:
        """The attribute as the node states it, else `default` (the schema's default is not looked up)."""
        return self.node.attributes.get(name, default)

    def input_type(self, index: int) -> TensorType | None:
        """Type of an input; None where it is absent."""
        inputs = self.node.inputs
        return self.graph.type_of(inputs[index]) if index < len(inputs) and inputs[index] else None

    def output_type(self, index: int = 0) -> TensorType:
        return self.graph.type_of(self.node.outputs[index])

    def __str__(self) -> str:
        return str(self.node)
