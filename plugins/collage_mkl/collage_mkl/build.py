"""From a group and a variant to its product, and what that is of."""

from __future__ import annotations

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Subgraph
from collage_mkl.kernel import Operand, Operation
from collage_mkl.planning import plan
from collage_mkl.support import addend

__all__ = ["operation_of"]


def operation_of(subgraph: Subgraph, variant: Variant, threads: int) -> Operation:
    """Of a variant that is offered; BackendError with the reason for another one."""
    product = plan(subgraph, variant)
    if isinstance(product, Refusal):
        raise BackendError(str(product))
    graph, node = subgraph.graph, subgraph.nodes[0]
    index = {v: i for i, v in enumerate(subgraph.inputs)}

    def operand(name: str) -> Operand:
        return index[name] if name in index else graph.constants[name]

    left, right = map(operand, node.inputs[:2])
    name = addend(node)
    added = operand(name) if name else None
    may_alias = {}
    if (
        isinstance(added, int)
        and name not in node.inputs[:2]
        and graph.type_of(name) == graph.type_of(node.outputs[0])
        and variant.inputs[added] == variant.outputs[0]
    ):
        may_alias = {0: added}
    return Operation(product, left, right, added, threads, may_alias)
