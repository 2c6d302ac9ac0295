"""Shape profiles: a bundle may hold a model for several shapes of its inputs (docs/adr/0047)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_core.errors import BundleError, CollageError
from collage_core.ir import Graph
from collage_core.target import Target

__all__ = [
    "MOST_PROFILES",
    "Interface",
    "Shapes",
    "choose",
    "fitting",
    "interface_of",
    "require_apart",
    "require_one_model",
    "require_same_interface",
    "shapes_of",
    "shapes_text",
]

Shapes = Mapping[str, tuple[int, ...]]
"""Of inputs, by name."""
Interface = tuple[tuple[str, str], ...]
"""Inputs and outputs of a graph by name, each with its dtype."""
MOST_PROFILES = 64
"""Each has kernels of its own: what is meant as more is rather a mistake."""


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Of all inputs, in the model's order: what a profile is told by."""
    return {v: graph.shape_of(v) for v in graph.variable_inputs()}


def shapes_text(shapes: Shapes) -> str:
    """As options of the command line say it: "x=8,3,224,224 y=8"."""
    return " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())


def require_apart(profiles: Sequence[Shapes]) -> None:
    """CollageError for none, for too many, and for the same shapes twice."""
    if not 1 <= len(profiles) <= MOST_PROFILES:
        raise CollageError(f"{len(profiles)} profiles of shapes; there may be 1 to {MOST_PROFILES}")
    known: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
    for number, shapes in enumerate(profiles, 1):
        first = known.setdefault(tuple(sorted(shapes.items())), number)
        if first != number:
            raise CollageError(f"profiles {first} and {number} have the same shapes: {shapes_text(shapes)}")


def require_one_model(profiles: Sequence[tuple[Graph, Target]]) -> None:
    """CollageError where targets differ, or inputs or outputs in more than their sizes."""
    if len({target for _, target in profiles}) > 1:
        raise CollageError("profiles of one bundle are for one target")
    require_same_interface([interface_of(graph) for graph, _ in profiles])


def interface_of(graph: Graph) -> Interface:
    """What all profiles of a model have in common."""
    return tuple((v, graph.type_of(v).dtype) for values in (graph.inputs, graph.outputs) for v in values)


def require_same_interface(interfaces: Sequence[Interface]) -> None:
    """CollageError where inputs or outputs differ in more than their sizes."""
    if len(set(interfaces)) > 1:
        raise CollageError("profiles of one bundle have the same inputs and outputs, but for their sizes")


def fitting(profiles: Sequence[Shapes], wanted: Shapes) -> list[int]:
    """The numbers of those that have these shapes, which may be of some inputs only."""
    asked = {name: tuple(shape) for name, shape in wanted.items()}
    return [n for n, shapes in enumerate(profiles) if all(shapes.get(v) == s for v, s in asked.items())]


def choose(profiles: Sequence[Shapes], wanted: Shapes | None, path: object) -> int:
    """The number of the profile that has the wanted shapes; those of some inputs, where that tells it.
    BundleError names those that are in the file `path`, or its inputs where another one is named.
    """
    inputs, wanted = profiles[0], wanted or {}
    for name, shape in wanted.items():
        if not isinstance(shape, Sequence):
            raise BundleError(f"{path}: the shape of {name!r} is {shape!r}, and no list of sizes")
    if others := [name for name in wanted if name not in inputs]:
        there = ", ".join(inputs) or "none"
        raise BundleError(f"{path}: the model has no input {others[0]!r}; its inputs: {there}")
    found = fitting(profiles, wanted)
    if len(found) == 1:
        return found[0]
    there = "; ".join(map(shapes_text, profiles))
    if not found:
        raise BundleError(f"{path}: no profile has the shapes {shapes_text(wanted)}; there are: {there}")
    raise BundleError(f"{path}: it has {len(profiles)} profiles, say which by its shapes: {there}")
