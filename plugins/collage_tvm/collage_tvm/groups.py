"""Which groups one loop nest can compute."""

from __future__ import annotations

from dataclasses import dataclass

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Operator, OpKind, Subgraph
from collage_tvm.axes import reduced_axes
from collage_tvm.support import check_operator

__all__ = ["MAX_OPERATORS", "POOLS", "SCANS", "check_group"]

POOLS = frozenset({"AveragePool", "LRN", "LpPool", "MaxPool"})
"""What reduces windows that overlap."""
SCANS = frozenset({"CumSum"})
MAX_OPERATORS = 32
"""A chain is tried from every start and in every length, so its candidates grow with this bound. A kernel of
60 additions compiles in 0.1 s, one of 60 activations in 1 s."""


@dataclass(frozen=True)
class _Rows:
    """What a reduction reduces, and the shape that a value per row has after it."""

    domain: tuple[int, ...]
    axes: tuple[int, ...]
    per_row: tuple[int, ...]


def check_group(subgraph: Subgraph) -> Refusal | None:
    """Why the nodes cannot be one kernel; None if they can."""
    graph = subgraph.graph
    if len(subgraph.node_set) > MAX_OPERATORS:
        return Refusal(f"a kernel has no more than {MAX_OPERATORS} operators", subgraph.nodes[0].name)
    for node in subgraph.nodes:
        if (refusal := check_operator(Operator(graph, node))) is not None:
            return refusal
    if not subgraph.outputs:
        return Refusal("nothing reads what the group computes", subgraph.nodes[0].name)
    kinds = {n.id: Operator(graph, n).kind for n in subgraph.nodes}
    if OpKind.TUPLE in kinds.values() and len(kinds) > 1:
        return Refusal("a split is compiled on its own", _first(subgraph, kinds, OpKind.TUPLE).name)
    if (scan := next((n for n in subgraph.nodes if n.op_type in SCANS), None)) and len(kinds) > 1:
        return Refusal("a scan is compiled on its own", scan.name)
    if OpKind.OUT_ELEMWISE_FUSABLE in kinds.values():
        return _check_contraction(subgraph, kinds)
    if OpKind.REDUCTION not in kinds.values():
        return None
    if len(subgraph.outputs) > 1:
        return Refusal(
            "a kernel with a reduction has one output", _first(subgraph, kinds, OpKind.REDUCTION).name
        )
    return _check_rows(subgraph, kinds)


def _first(subgraph: Subgraph, kinds: dict[int, OpKind], kind: OpKind) -> Node:
    return next(n for n in subgraph.nodes if kinds[n.id] == kind)


def _check_contraction(subgraph: Subgraph, kinds: dict[int, OpKind]) -> Refusal | None:
    """One contraction of values from outside; all else is arithmetic on its result, element by element."""
    graph = subgraph.graph
    contraction = _first(subgraph, kinds, OpKind.OUT_ELEMWISE_FUSABLE)
    if len(subgraph.outputs) > 1:
        return Refusal(f"a kernel with a {contraction.op_type} has one output", contraction.name)
    inside = {v for n in subgraph.nodes for v in n.outputs}
    shape = graph.shape_of(contraction.outputs[0])
    for node in subgraph.nodes:
        if kinds[node.id] == OpKind.OUT_ELEMWISE_FUSABLE:
            if node is not contraction:
                return Refusal(f"it would be the second contraction, after {contraction.name}", node.name)
            if any(v in inside for v in node.inputs):
                return Refusal(
                    f"a {node.op_type} reads every element several times, so nothing is fused into its input",
                    node.name,
                )
        elif kinds[node.id] > OpKind.BROADCAST:
            return Refusal(f"only arithmetic is done in the kernel of a {contraction.op_type}", node.name)
    if graph.shape_of(subgraph.outputs[0]) != shape:
        return Refusal(
            f"the result of a {contraction.op_type} is broadcast to another shape", subgraph.nodes[-1].name
        )
    return None


def _check_rows(subgraph: Subgraph, kinds: dict[int, OpKind]) -> Refusal | None:
    """All reductions reduce the same rows, and what follows them stays in the row."""
    graph = subgraph.graph
    rows: _Rows | None = None
    below: set[str] = set()
    inside = {v for n in subgraph.nodes for v in n.outputs}
    for node in subgraph.nodes:
        reduces = kinds[node.id] == OpKind.REDUCTION
        if reduces:
            own = _rows_of(Operator(graph, node))
            if (reason := _joins(node, own, rows, below, inside)) is not None:
                return Refusal(reason, node.name)
            rows = own
        elif not _follows(node, below):
            continue
        elif kinds[node.id] > OpKind.BROADCAST:
            return Refusal("the result of a reduction is not rearranged in the same kernel", node.name)
        assert rows is not None
        shape = graph.shape_of(node.outputs[0])
        if shape not in (rows.domain, rows.per_row):
            return Refusal(
                "the result of a reduction is broadcast to another shape than that of its input", node.name
            )
        if not reduces and shape == rows.domain and _spreads_without_its_axes(graph, node, rows, below):
            return Refusal("the result of a reduction without keepdims is broadcast", node.name)
        below.update(node.outputs)
    return None


def _joins(node: Node, own: _Rows, rows: _Rows | None, below: set[str], inside: set[str]) -> str | None:
    """Why a reduction cannot share a kernel with those before it, whose rows and results are `rows` and
    `below`; None if it can. inside: all that the group computes."""
    if node.op_type in POOLS and node.inputs[0] in inside:
        return f"{node.op_type} reads every element several times, so nothing is fused into its input"
    if rows is not None and (own.domain, own.axes) != (rows.domain, rows.axes):
        return "it reduces other rows than the reduction before it"
    if any(v in below for v in node.inputs[1:]):
        return "its parameters depend on a reduction in the same kernel"
    return None


def _follows(node: Node, below: set[str]) -> bool:
    """Whether a node reads what is computed from a reduction."""
    return any(v in below for v in node.inputs)


def _spreads_without_its_axes(graph: Graph, node: Node, rows: _Rows, below: set[str]) -> bool:
    """Whether a node with a value per element reads one per row in which the reduced axes are missing, so
    that broadcasting would take other axes for them."""
    if len(rows.per_row) == len(rows.domain):
        return False
    return any(v in below and graph.shape_of(v) == rows.per_row for v in node.inputs)


def _rows_of(op: Operator) -> _Rows:
    type = op.input_type(0)
    assert type is not None
    shape = type.static_shape
    rank = len(shape)
    if op.op_type in POOLS - {"LRN"}:
        output = op.output_type().static_shape
        kernel = tuple(op.attribute("kernel_shape"))
        return _Rows(output + kernel, tuple(range(len(output), len(output) + len(kernel))), output)
    if op.op_type == "LRN":
        return _Rows((*shape, op.attribute("size")), (rank,), shape)
    axes = reduced_axes(op)
    if op.op_type.startswith(("Arg", "Reduce")) and not op.attribute("keepdims", 1):
        per_row = tuple(d for k, d in enumerate(shape) if k not in axes)
    else:
        per_row = tuple(1 if k in axes else d for k, d in enumerate(shape))
    return _Rows(shape, axes, per_row)
