"""What must be true of every graph."""

from __future__ import annotations

from collage_core.errors import ModelError
from collage_core.ir.bodies import bodies_of, free_values
from collage_core.ir.graph import Graph

__all__ = ["verify"]


def verify(graph: Graph, after: str = "reading") -> None:
    """Raise ModelError unless ids and names are unique, nodes are in topological order and every value is
    known and computed once.
    """
    known = set(graph.inputs) | set(graph.constants)
    ids: set[int] = set()
    names: set[str] = set()
    for n in graph.nodes:
        if n.id in ids:
            raise ModelError(f"after {after}: node id {n.id} occurs twice ({n.name})")
        if n.name in names:
            raise ModelError(f"after {after}: two nodes are named {n.name!r}")
        ids.add(n.id)
        names.add(n.name)
        for v in n.inputs:
            if v and v not in known:
                raise ModelError(f"after {after}: node {n.name!r} reads {v!r} before it is computed")
        for body in bodies_of(n).values():
            for v in free_values(body):
                if v not in n.captured:
                    raise ModelError(
                        f"after {after}: a body of {n.name!r} reads {v!r}, which it is not given"
                    )
        for v in n.outputs:
            if v in known:
                raise ModelError(f"after {after}: {v!r} is computed twice, again by {n.name!r}")
            if v:
                known.add(v)
    for v in graph.outputs:
        if v not in known:
            raise ModelError(f"after {after}: output {v!r} is not computed")
    for v in known:
        if v not in graph.values:
            raise ModelError(f"after {after}: {v!r} has no type")
