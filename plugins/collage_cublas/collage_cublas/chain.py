"""A group of ONNX operators read as one product: a MatMul or Gemm, and what follows it. Loads nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Subgraph

__all__ = ["ACTIVATIONS", "DTYPES", "PRODUCT_OPS", "Addend", "Chain", "parse"]

PRODUCT_OPS = ("Gemm", "MatMul")
DTYPES = ("float32", "float64", "float16", "bfloat16")

ACTIVATIONS = ("Gelu", "Relu")
"""What may end a group. Leave one out to offer it no longer: the epilogue is used only where the algorithm
keeps NaN, which `selection` tries on the device. That RELU makes 0 of NaN has been reported:
https://forums.developer.nvidia.com/t/incorrect-result-of-cublasltmatmul-with-cublaslt-epilogue-relu-when-input-is-nan/329783
"""

_MOST_ADDENDS = 2
"""A bias and a matrix."""


@dataclass(frozen=True, slots=True)
class Addend:
    """What is added to the product, `factor` times."""

    name: str
    factor: float


@dataclass(frozen=True, slots=True)
class Chain:
    """activation(alpha * product + addends). anchor: the MatMul or Gemm. output: the last value."""

    graph: Graph
    anchor: Node
    alpha: float
    addends: tuple[Addend, ...]
    activation: str
    output: str

    @property
    def left(self) -> str:
        return self.anchor.inputs[0]

    @property
    def right(self) -> str:
        return self.anchor.inputs[1]


def parse(subgraph: Subgraph) -> Chain | Refusal:
    """Read a group as one product; the Refusal names the node at which that fails."""
    graph, (anchor, *rest) = subgraph.graph, subgraph.nodes
    wrong = _anchor_refusal(graph, anchor)
    if wrong is not None:
        return wrong
    if not subgraph.outputs:
        return Refusal("nothing reads what the group computes", anchor.name)
    chain = _begun(graph, anchor)
    if isinstance(chain, Refusal):
        return chain
    inside = {v for node in subgraph.nodes for v in node.outputs}
    for node in rest:
        if chain.output in subgraph.outputs:
            return Refusal(f"the intermediate value {chain.output!r} is read outside the group", node.name)
        if sum(v in inside for v in node.inputs) != 1 or chain.output not in node.inputs:
            return Refusal("it does not follow the product in one chain", node.name)
        wrong = _value_refusal(graph, node, graph.type_of(chain.output).shape)
        if wrong is not None:
            return wrong
        taken = _followed(chain, node)
        if isinstance(taken, Refusal):
            return taken
        chain = taken
    if subgraph.outputs != (chain.output,):
        return Refusal("a value inside the group is read outside it", anchor.name)
    if len(chain.addends) > _MOST_ADDENDS:
        return Refusal(f"more than {_MOST_ADDENDS} values are added", rest[-1].name)
    return chain


def _anchor_refusal(graph: Graph, node: Node) -> Refusal | None:
    if node.domain or node.op_type not in PRODUCT_OPS:
        return Refusal(f"{node.op_type} is no matrix product", node.name)
    wrong = _value_refusal(graph, node, None)
    if wrong is not None:
        return wrong
    if all(graph.is_constant(v) for v in node.inputs[:2]):
        return Refusal("both factors are constant", node.name)
    return None


def _value_refusal(graph: Graph, node: Node, shape: tuple[int | str, ...] | None) -> Refusal | None:
    """What is wrong with the values that a node reads and yields; shape: that of its result."""
    for v in filter(None, (*node.inputs, node.outputs[0])):
        type = graph.type_of(v)
        if not type.dtype:
            return Refusal(f"the type of {v!r} is not known", node.name)
        if type.dtype not in DTYPES:
            return Refusal(f"{type.dtype} is not supported, only {', '.join(DTYPES)}", node.name)
        if type.symbolic_dims:
            return Refusal(f"dimension {type.symbolic_dims[0]!r} is not known", node.name)
        if type.size == 0:
            return Refusal("a tensor has no elements", node.name)
    if shape is not None and graph.shape_of(node.outputs[0]) != shape:
        return Refusal("the product is broadcast to a larger shape", node.name)
    return None


def _begun(graph: Graph, node: Node) -> Chain | Refusal:
    """The product alone."""
    out = node.outputs[0]
    if node.op_type == "MatMul":
        return Chain(graph, node, 1.0, (), "", out)
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    named = node.inputs[2] if len(node.inputs) > 2 and beta != 0.0 else ""
    if named and not _broadcasts(graph.shape_of(named), graph.shape_of(out)):
        return Refusal("the addend does not broadcast to the output", node.name)
    if not math.isfinite(beta):
        return Refusal(f"beta is {beta}", node.name)
    return _scaled(Chain(graph, node, 1.0, (Addend(named, beta),) if named else (), "", out), alpha, node)


def _followed(chain: Chain, node: Node) -> Chain | Refusal:
    """With what `node` makes of its result."""
    out = node.outputs[0]
    if chain.activation:
        return Refusal(f"nothing is fused behind {chain.activation}", node.name)
    if not node.domain and node.op_type in ACTIVATIONS:
        if node.op_type == "Gelu" and node.attributes.get("approximate", "none") != "tanh":
            return Refusal("the library's GELU is the tanh form", node.name)
        return Chain(chain.graph, chain.anchor, chain.alpha, chain.addends, node.op_type, out)
    if not node.domain and node.op_type == "Add":
        other = next(v for v in node.inputs if v != chain.output)
        addends = (*chain.addends, Addend(other, 1.0))
        return Chain(chain.graph, chain.anchor, chain.alpha, addends, "", out)
    if not node.domain and node.op_type in ("Div", "Mul"):
        factor = _factor(chain, node)
        if isinstance(factor, Refusal):
            return factor
        return _scaled(Chain(chain.graph, chain.anchor, chain.alpha, chain.addends, "", out), factor, node)
    return Refusal(f"{node.op_type} is not fused to a product", node.name)


def _factor(chain: Chain, node: Node) -> float | Refusal:
    """By what a Mul or Div multiplies the product."""
    if chain.addends:
        return Refusal("only the product alone is scaled", node.name)
    other = next(v for v in node.inputs if v != chain.output)
    data = chain.graph.constants.get(other)
    if data is None or data.size != 1:
        return Refusal("the product is scaled by something else than one constant", node.name)
    number = float(data.reshape(-1)[0])
    if node.op_type == "Mul":
        return number
    if node.inputs[0] != chain.output or number == 0.0:
        return Refusal("it divides by the product, or the product by 0", node.name)
    return 1.0 / number


def _scaled(chain: Chain, factor: float, node: Node) -> Chain | Refusal:
    alpha = chain.alpha * factor
    limit = np.finfo(np.float64 if chain.graph.type_of(chain.output).dtype == "float64" else np.float32)
    # The library does not read A and B where alpha is 0; NaN and infinities must come through.
    if not float(limit.tiny) <= abs(alpha) <= float(limit.max):
        return Refusal(f"the product is multiplied by {alpha}", node.name)
    return Chain(chain.graph, chain.anchor, alpha, chain.addends, "", chain.output)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False
