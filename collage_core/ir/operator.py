"""One node seen in its graph: what rules and checks are handed, so that they need no second argument."""

from __future__ import annotations

from dataclasses import dataclass

from collage_core.ir.aliases import op_name_of
from collage_core.ir.attributes import Attributes
from collage_core.ir.occurrence import Occurrence
from collage_core.ir.opkinds import OpKind

__all__ = ["Operator"]


@dataclass(frozen=True, slots=True)
class Operator(Occurrence):
    """A node and the graph it stands in, by the names that people call it.

    Rules may ask it as the paper's Listing 1 asks its operators: `op.name == "conv2d"`, `op.type <=
    kElemwise`, `op.attrs.data_layout`, `op.attrs["strides"]`.
    """

    @property
    def name(self) -> str:
        """The alias that fits best (`conv2d`, `dense`, `relu`), else the ONNX type; the node's own name is
        `op.node.name`.
        """
        return op_name_of(self)

    @property
    def type(self) -> OpKind:
        """`kind`, under the name that the paper's rules use."""
        return self.kind

    @property
    def attrs(self) -> Attributes:
        """The attributes, defaults included, under ONNX's and Relay's names."""
        return Attributes(self)
