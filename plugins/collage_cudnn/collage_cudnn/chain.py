"""A group of ONNX operators read as one kernel: an anchor, if there is one, and the pointwise operators that
follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

from collage_core.errors import Refusal
from collage_core.formats import Layout
from collage_core.ir import Graph, Node, Subgraph
from collage_cudnn.place import Place, collapsed
from collage_cudnn.pointwise import POINTWISE_OPS, operands_of
from collage_cudnn.support import ANCHOR_OPS, FUSING_OPS, refusal

__all__ = ["MOST_NODES", "TOO_MANY_WAYS", "Chain", "parse", "pointwise_place"]

MOST_NODES = 16

TOO_MANY_WAYS = "the operands are broadcast in more ways than four dimensions have room for"


@dataclass(frozen=True, slots=True)
class Chain:
    """anchor: the node that a kernel is made around; None where all is pointwise. steps: the others, in
    topological order. output: the last value. shape: its, and that of all that steps compute.
    """

    graph: Graph
    anchor: Node | None
    steps: tuple[Node, ...]
    output: str
    shape: tuple[int, ...]

    @property
    def operands(self) -> tuple[str, ...]:
        """What the steps read that is computed elsewhere, in order; constants are among them."""
        inside = {v for n in (self.anchor, *self.steps) if n is not None for v in n.outputs}
        read = (v for n in self.steps for v in operands_of(n) if v not in inside)
        return tuple(dict.fromkeys(read))


def parse(subgraph: Subgraph) -> Chain | Refusal:
    """Read a group as a chain; the Refusal names the node at which that fails."""
    graph, nodes = subgraph.graph, subgraph.nodes
    for node in nodes:
        wrong = refusal(graph, node)
        if wrong is not None:
            return wrong
    if len(subgraph.outputs) != 1:
        return Refusal(f"the group has {len(subgraph.outputs)} results", nodes[-1].name)
    if len(nodes) > MOST_NODES:
        return Refusal(f"{len(nodes)} operators; at most {MOST_NODES} are fused", nodes[0].name)
    anchors = [n for n in nodes if n.op_type in ANCHOR_OPS]
    steps = tuple(n for n in nodes if n.op_type in POINTWISE_OPS)
    if len(anchors) > 1:
        return Refusal("a second operator that is not pointwise", anchors[1].name)
    anchor = anchors[0] if anchors else None
    output = subgraph.outputs[0]
    chain = Chain(graph, anchor, steps, output, graph.shape_of(output))
    wrong = _refusal(chain)
    return chain if wrong is None else wrong


def pointwise_place(chain: Chain, layout: Layout) -> Place | None:
    """Where the values of a chain without an anchor lie, the output in the order of `layout`; None where they
    are broadcast in too many ways.
    """
    shapes = [chain.graph.shape_of(v) for v in chain.operands]
    if any(n.op_type == "BatchNormalization" for n in chain.steps):
        shapes.append(tuple(n if d == 1 else 1 for d, n in enumerate(chain.shape)))
    return collapsed(chain.shape, layout, shapes)


def _refusal(chain: Chain) -> Refusal | None:
    graph, anchor, steps = chain.graph, chain.anchor, chain.steps
    made = {v: n for n in steps for v in n.outputs if v}
    if anchor is not None:
        if steps and anchor.op_type not in FUSING_OPS:
            return Refusal(f"nothing is fused to {anchor.op_type}", anchor.name)
        if any(v in made for v in anchor.inputs):
            return Refusal("the group computes an input of its anchor", anchor.name)
        made[anchor.outputs[0]] = anchor
    read = {v for n in steps for v in operands_of(n)}
    if idle := [v for v in made if v not in read and v != chain.output]:
        return Refusal("nothing in the group reads its result", made[idle[0]].name)
    for node in steps:
        if graph.shape_of(node.outputs[0]) != chain.shape:
            return Refusal("a value inside the group is broadcast", node.name)
        if chain.output in operands_of(node):
            return Refusal("the group goes on after its result", node.name)
    if anchor is not None and graph.shape_of(anchor.outputs[0]) != chain.shape:
        return Refusal("the result of the anchor is broadcast", anchor.name)
    full = {v for v in chain.operands if graph.shape_of(v) == chain.shape and not graph.is_constant(v)}
    if anchor is None and not full:
        return Refusal("no input that is not constant has the shape of the result", steps[0].name)
    dtypes = {graph.type_of(v).dtype for v in chain.operands} | {graph.type_of(chain.output).dtype}
    if len(dtypes) > 1:
        return Refusal("the group's values are of several types", steps[-1].name)
    return None
