"""Nodes that a person names: one, many by a glob, or all of an operator."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase

from collage_core.errors import ModelError
from collage_core.ir.graph import Graph
from collage_core.ir.types import Node

__all__ = ["is_glob", "selected"]


def selected(graph: Graph, selector: str) -> tuple[Node, ...]:
    """The nodes that `selector` names, in the graph's order; never none.

    It is the name of a node; or a glob of names (`*`, `?`, `[...]`, as in `fnmatch`; `*` goes over slashes,
    too); or the type of an operator, with its domain where that is not ONNX's own. ModelError, with what
    comes near, where it is none of these.
    """
    exact = [n for n in graph.nodes if n.name == selector]
    if exact:
        return tuple(exact)
    if is_glob(selector):
        found = [n for n in graph.nodes if fnmatchcase(n.name, selector)]
    else:
        found = [n for n in graph.nodes if selector in (n.op_type, n.qualified_op)]
    if not found:
        raise ModelError(_nothing(graph, selector))
    return tuple(found)


def is_glob(selector: str) -> bool:
    """Whether it may stand for several names."""
    return any(c in selector for c in "*?[")


def _nothing(graph: Graph, selector: str) -> str:
    if is_glob(selector):
        return f"no node's name matches {selector!r} in graph {graph.name!r}"
    known = dict.fromkeys(text for n in graph.nodes for text in (n.name, n.op_type))
    near = difflib.get_close_matches(selector, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no node is named {selector!r} in graph {graph.name!r}, nor is it an operator there{hint}"
