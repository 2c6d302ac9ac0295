"""One node seen in its graph: what rules and checks are handed, so that they need no second argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage_core.ir.graph import Graph
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.types import Attribute, Node, TensorType

if TYPE_CHECKING:
    from collage_core.ir.attributes import Attributes

__all__ = ["Operator"]


@dataclass(frozen=True, slots=True)
class Operator:
    """A node and the graph it stands in.

    Rules may ask it as the paper's Listing 1 asks its operators: `op.name == "conv2d"`, `op.type <=
    kElemwise`, `op.attrs.data_layout`, `op.attrs["strides"]`.
    """

    graph: Graph
    node: Node

    @property
    def op_type(self) -> str:
        return self.node.op_type

    @property
    def kind(self) -> OpKind:
        return op_kind(self.graph, self.node)

    @property
    def name(self) -> str:
        """The alias that fits best (`conv2d`, `dense`, `relu`), else the ONNX type; the node's own name is
        `op.node.name`.
        """
        # Imported here, as in `attrs`: both look at operators themselves.
        from collage_core.ir.aliases import op_name_of

        return op_name_of(self)

    @property
    def type(self) -> OpKind:
        """`kind`, under the name that the paper's rules use."""
        return self.kind

    @property
    def attrs(self) -> Attributes:
        """The attributes, defaults included, under ONNX's and Relay's names."""
        from collage_core.ir.attributes import Attributes

        return Attributes(self)

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
