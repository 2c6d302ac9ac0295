"""A group of ONNX operators read as one primitive: an anchor and the chain of steps that follows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Subgraph
from collage_dnnl.enums import Alg
from collage_dnnl.kernels.plan import Eltwise
from collage_dnnl.steps import BINARY_OPS, UNARY_OPS, Binary, Step, diamond_steps, steps_of
from collage_dnnl.support import ANCHOR_OPS, REDUCTIONS, refusal, running_input

__all__ = ["MAX_POST_OPS", "NO_POST_OPS", "Chain", "has_spatial_operands", "parse"]

MAX_POST_OPS = 8

NO_POST_OPS = frozenset(["Concat", "LRN", "LayerNormalization"])
"""Anchors that stay alone."""


@dataclass(frozen=True, slots=True)
class Chain:
    """anchor: the node of the primitive, None where the chain is all elementwise. source: the value that the
    steps start from (the anchor's output, or the input of an elementwise chain). steps: what follows, in
    order. output: the last value.
    """

    graph: Graph
    anchor: Node | None
    source: str
    steps: tuple[Step, ...]
    output: str

    @property
    def operands(self) -> tuple[str, ...]:
        """Values that binary steps read besides the running one."""
        return tuple(s.operand for s in self.steps if isinstance(s, Binary))


def parse(subgraph: Subgraph) -> Chain | Refusal:
    """Read a group as a chain; the Refusal names the node at which that fails."""
    graph, remaining = subgraph.graph, list(subgraph.nodes)
    for node in remaining:
        wrong = refusal(graph, node)
        if wrong is not None:
            return wrong
    first = remaining[0]
    if not subgraph.outputs:
        return Refusal("nothing reads what the group computes", first.name)
    if first.op_type in ANCHOR_OPS:
        anchor: Node | None = first
        remaining.remove(first)
        running = first.outputs[0]
    else:
        found = running_input(graph, first)
        if found is None:
            return Refusal("no input that is not constant has the shape of the output", first.name)
        anchor, running = None, found
    source = running
    inside = {v for n in subgraph.nodes for v in n.outputs}
    steps: list[Step] = []
    while remaining:
        if running in inside and running in subgraph.outputs:
            return Refusal(f"the intermediate value {running!r} is read outside the group", first.name)
        taken = _next(graph, remaining, running, running not in inside)
        if isinstance(taken, Refusal):
            return taken
        nodes, added = taken
        for node in nodes:
            remaining.remove(node)
        if any(isinstance(s, Binary) and s.operand in inside for s in added):
            return Refusal("an operand is computed in the group itself", nodes[-1].name)
        steps += added
        running = nodes[-1].outputs[0]
    if subgraph.outputs != (running,):
        return Refusal("a value inside the group is read outside it", first.name)
    after_anchor = len(steps) - (anchor is None)
    if after_anchor > MAX_POST_OPS:
        return Refusal(f"{after_anchor} post-operations; at most {MAX_POST_OPS} are fused", first.name)
    if steps and anchor is not None:
        wrong = _post_ops_refusal(graph, anchor, steps)
        if wrong is not None:
            return wrong
    return Chain(graph, anchor, source, tuple(steps), running)


def _post_ops_refusal(graph: Graph, anchor: Node, steps: list[Step]) -> Refusal | None:
    """Why version 3.2 cannot fuse the steps to the anchor, where that depends on the kind of the anchor."""
    op = anchor.op_type
    if op in NO_POST_OPS:
        return Refusal(f"oneDNN fuses nothing to {op}", anchor.name)
    if op == "BatchNormalization" and steps != [Eltwise(Alg.ELTWISE_RELU)]:
        return Refusal("oneDNN fuses only Relu to batch normalisation", anchor.name)
    if op == "Resize" and has_spatial_operands(graph, anchor, steps):
        # Version 3.2 reads wrong elements of such an operand.
        return Refusal("an operand after Resize varies over spatial dimensions", anchor.name)
    if op in REDUCTIONS and any(isinstance(s, Binary) for s in steps):
        return Refusal("operands after a reduction are not supported", anchor.name)
    return None


def has_spatial_operands(graph: Graph, anchor: Node, steps: Sequence[Step]) -> bool:
    """Whether an operand varies over the spatial dimensions of the anchor's output."""
    spatial = len(graph.shape_of(anchor.outputs[0])) - 2
    return any(isinstance(s, Binary) and math.prod(graph.shape_of(s.operand)[-spatial:]) > 1 for s in steps)


def _next(
    graph: Graph, remaining: list[Node], running: str, external: bool
) -> tuple[list[Node], list[Step]] | Refusal:
    """The nodes that take the running value on, and their steps. An external value may be read again later,
    as an operand.
    """
    readers = [n for n in remaining if running in n.inputs]
    if not readers:
        return Refusal("is not on one chain with the rest of the group", remaining[0].name)
    if len(readers) > 1:
        for join in readers[1:]:
            branch = remaining[: remaining.index(join) + 1]
            steps = diamond_steps(branch, running)
            if steps is not None:
                return branch, steps
        if not external:
            return Refusal(f"{running!r} has several readers in the group", readers[0].name)
    node = readers[0]
    if node.op_type not in UNARY_OPS and node.op_type not in BINARY_OPS:
        return Refusal(f"{node.op_type} cannot follow another operator in one primitive", node.name)
    found = steps_of(graph, node, running)
    return found if isinstance(found, Refusal) else ([node], found)
