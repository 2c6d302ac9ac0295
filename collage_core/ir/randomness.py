"""Operators that draw random numbers, and what may be said of what they yield.

ONNX prescribes a distribution, not numbers: equal seeds give other numbers in another library. So what
depends on a draw has no right answer but a legal range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collage_core.ir.bodies import bodies_of, closed
from collage_core.ir.graph import Graph
from collage_core.ir.operator import Operator
from collage_core.ir.types import UNKNOWN, Node
from collage_core.ir.views import VIEW_OPS

__all__ = ["Drawn", "drawing_nodes", "draws", "random_values", "seed_of"]

_DRAWING = frozenset(
    [
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ]
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The legal numbers of a value that depends on a draw: finite, from `least` to `most`, and whole where
    `is_whole` says so. Both ends count: a number below `most` may round to it.
    """

    least: float = -math.inf
    most: float = math.inf
    is_whole: bool = False

    def __str__(self) -> str:
        return f"{'whole ' if self.is_whole else ''}numbers from {self.least:g} to {self.most:g}"


def draws(graph: Graph, node: Node) -> bool:
    """Whether the node draws random numbers, or its bodies do. Dropout does where it is, or may be, in
    training mode.
    """
    if any(draws(body, n) for body in _closed_bodies(graph, node) for n in body.nodes):
        return True
    if node.domain or node.op_type not in _DRAWING:
        return False
    if node.op_type != "Dropout":
        return True
    training = node.inputs[2] if len(node.inputs) > 2 else ""
    return bool(training) and (not graph.is_constant(training) or bool(graph.constants[training].any()))


def drawing_nodes(graph: Graph) -> Iterator[Node]:
    """Those that draw themselves, in the graph's order; in bodies, too."""
    for node in graph.nodes:
        for body in _closed_bodies(graph, node):
            yield from drawing_nodes(body)
        if node.op_type in _DRAWING and draws(graph, node):
            yield node


def _closed_bodies(graph: Graph, node: Node) -> list[Graph]:
    return [closed(graph, node, body, {}) for body in bodies_of(node).values()]


def seed_of(node: Node) -> int | None:
    """The seed that a drawing node states, as libraries read it: without fraction."""
    seed = node.attributes.get("seed")
    return None if seed is None or not math.isfinite(seed) else int(seed)


def random_values(graph: Graph, nodes: Iterable[Node] | None = None) -> dict[str, Drawn]:
    """By name, the values that depend on a draw in `nodes` (which are in topological order; all of the
    graph's where None), and what is legal for each.
    """
    found: dict[str, Drawn] = {}
    for node in graph.nodes if nodes is None else nodes:
        if draws(graph, node):
            legal = _drawn_by(graph, node)
        elif found.keys().isdisjoint(node.inputs) or (not node.domain and node.op_type in ("Shape", "Size")):
            continue
        elif not node.domain and node.op_type in VIEW_OPS and node.inputs[0] in found:
            legal = [found[node.inputs[0]]]
        else:
            legal = [Drawn()] * len(node.outputs)
        found.update({v: d for v, d in zip(node.outputs, legal, strict=False) if v})
    return found


def _drawn_by(graph: Graph, node: Node) -> list[Drawn]:
    """What is legal for each output of a drawing node."""
    if node.op_type not in _DRAWING:  # its bodies do
        return [Drawn()] * len(node.outputs)
    attributes = Operator(graph, node).attrs
    if node.op_type in ("RandomUniform", "RandomUniformLike"):
        return [Drawn(*sorted((attributes["low"], attributes["high"])))]
    if node.op_type == "Bernoulli":
        return [Drawn(0, 1, is_whole=True)]
    if node.op_type == "Multinomial":
        type = graph.type_of(node.inputs[0])
        known = type != UNKNOWN and isinstance(type.shape[-1], int)
        return [Drawn(0, type.static_shape[-1] - 1 if known else math.inf, is_whole=True)]
    return [Drawn(), Drawn(0, 1, is_whole=True)]  # the second: Dropout's mask
