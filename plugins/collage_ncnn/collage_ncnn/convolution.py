"""A group of ONNX operators read as one convolution of ncnn's. Loads nothing."""

from __future__ import annotations

from dataclasses import dataclass

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Operator, Subgraph
from collage_ncnn.activations import ACTIVATION_OPS, NO_ACTIVATION, Activation

__all__ = ["Convolution", "Image", "parse"]

_WINOGRAD_CHANNELS = 8
"""With no more channels than these on both sides ncnn does not take Winograd's algorithm."""


@dataclass(frozen=True, slots=True)
class Image:
    """The extent of one image of a batch."""

    channels: int
    height: int
    width: int

    @property
    def elements(self) -> int:
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True)
class Convolution:
    """Names of the values; pairs are height and width. bias: "" where there is none. begin and end: the
    padding. activation: of the result.
    """

    source: str
    weights: str
    bias: str
    batch: int
    input: Image
    output: Image
    groups: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begin: tuple[int, int]
    end: tuple[int, int]
    activation: Activation

    @property
    def can_winograd(self) -> bool:
        """Whether it may be computed with fewer products (Lavin and Gray, arXiv 1509.09308)."""
        return (
            (self.kernel, self.strides, self.dilations, self.groups) == ((3, 3), (1, 1), (1, 1), 1)
            and max(self.input.channels, self.output.channels) > _WINOGRAD_CHANNELS
        )  # fmt: skip


def parse(subgraph: Subgraph) -> Convolution | Refusal:
    """Read a group as a convolution and its activation; the Refusal names the node at which that fails."""
    graph, (node, *after) = subgraph.graph, subgraph.nodes
    if node.domain or node.op_type != "Conv":
        return Refusal(f"{node.op_type} is no convolution", node.name)
    if (wrong := _refusal(graph, node)) is not None:
        return wrong
    result, activation = node.outputs[0], NO_ACTIVATION
    if after:
        follower = after[0]
        if len(after) > 1 or follower.op_type not in ACTIVATION_OPS or follower.inputs[0] != result:
            return Refusal("only an activation is fused to a convolution", after[-1].name)
        found = ACTIVATION_OPS[follower.op_type](graph, follower)
        if isinstance(found, Refusal):
            return found
        result, activation = follower.outputs[0], found
    if subgraph.outputs != (result,):
        return Refusal("nothing, or somebody else, reads what the group computes", node.name)
    attributes = Operator(graph, node).attrs
    x, y = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    pads = attributes["pads"]
    return Convolution(
        source=node.inputs[0],
        weights=node.inputs[1],
        bias=node.inputs[2] if len(node.inputs) > 2 else "",
        batch=x[0],
        input=Image(*x[1:]),
        output=Image(*y[1:]),
        groups=int(attributes["group"]),
        kernel=_pair(graph.shape_of(node.inputs[1])[2:]),
        strides=_pair(attributes["strides"]),
        dilations=_pair(attributes["dilations"]),
        begin=_pair(pads[:2]),
        end=_pair(pads[2:]),
        activation=activation,
    )


def _refusal(graph: Graph, node: Node) -> Refusal | None:
    """Why ncnn cannot run the convolution `node`, or None if it can."""
    for v in (*filter(None, node.inputs), node.outputs[0]):
        type = graph.type_of(v)
        if type.dtype != "float32":
            return Refusal(f"{v!r} is {type or 'of no known type'}; only float32 is supported", node.name)
        if type.symbolic_dims:
            return Refusal(f"dimension {type.symbolic_dims[0]!r} is not known", node.name)
        if type.size == 0:
            return Refusal("a tensor has no elements", node.name)
    if len(graph.shape_of(node.inputs[0])) != 4 or len(graph.shape_of(node.inputs[1])) != 4:
        return Refusal("only two spatial dimensions are supported", node.name)
    if graph.is_constant(node.inputs[0]):
        return Refusal("what is convolved is constant", node.name)
    if not all(graph.is_constant(v) for v in node.inputs[1:] if v):
        return Refusal("weights or bias are not constant", node.name)
    attributes = Operator(graph, node).attrs
    lengths = {"pads": 4, "strides": 2, "dilations": 2}
    if wrong := [name for name, length in lengths.items() if len(attributes[name]) != length]:
        return Refusal(f"{wrong[0]} does not fit two spatial dimensions", node.name)
    if min(attributes["pads"]) < 0:
        return Refusal("padding is negative", node.name)
    channels, groups = graph.shape_of(node.inputs[0])[1], int(attributes["group"])
    if groups not in (1, channels) or (groups > 1 and graph.shape_of(node.inputs[1])[0] != channels):
        return Refusal("groups of channels; only all together or each by itself", node.name)
    return None


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    height, width = values
    return int(height), int(width)
