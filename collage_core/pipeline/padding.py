"""Which requests may be padded with more rows to a profile's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from collage_core.errors import ModelError
from collage_core.ir import Graph, RowAxes, from_model, load_model
from collage_core.ir.rows import independent_rows
from collage_core.ir.static import require_static_inputs
from collage_core.plugins import Registry
from collage_core.runtime.profiles import Shapes

__all__ = ["rows_of"]


def rows_of(
    model: str | Path | onnx.ModelProto, shapes: Shapes, dimension: str, registry: Registry
) -> RowAxes | None:
    """The rows of a model in these shapes along a dimension: one that it names, or INPUT:AXIS, or several of
    the latter with commas between them. None where there is one row or none: no request has fewer.

    ModelError for a dimension that it has not, for an input of which another one is open, and for rows that
    are not proven to be independent.
    """
    as_given = _read(model, {}, registry)
    axes = _axes(as_given, dimension)
    graph = _read(model, shapes, registry)
    require_static_inputs(graph)
    counts = {graph.shape_of(v)[axis] for v, axis in axes.items()}
    if len(counts) > 1:
        told = ", ".join(f"{v} {graph.shape_of(v)[axis]}" for v, axis in axes.items())
        raise ModelError(f"inputs have different numbers of rows along {dimension}: {told}")
    (count,) = counts
    if count < 2:
        return None

    def at(number: int) -> Graph:
        try:
            return _read(model, _with_rows(as_given, graph, axes, number), registry)
        except ModelError as error:
            raise ModelError(f"rows are not proven independent: with {number} of them {error}") from None

    is_open = any(isinstance(as_given.type_of(v).shape[axis], str) for v, axis in axes.items())
    return independent_rows(graph, axes, at if is_open else None)


def _with_rows(as_given: Graph, graph: Graph, axes: Mapping[str, int], number: int) -> Shapes:
    """Of the inputs that are open in the model: with so many rows."""
    shapes = {v: list(graph.shape_of(v)) for v in graph.inputs}
    for v, axis in axes.items():
        shapes[v][axis] = number
    return {v: tuple(shape) for v, shape in shapes.items() if not as_given.type_of(v).is_static}


def _read(model: str | Path | onnx.ModelProto, shapes: Shapes, registry: Registry) -> Graph:
    if isinstance(model, onnx.ModelProto):
        return from_model(model, shapes, definitions=registry.definitions)
    return load_model(model, shapes, definitions=registry.definitions)


def _axes(graph: Graph, dimension: str) -> dict[str, int]:
    """By input, where rows lie."""
    places = [
        (v, axis)
        for v in graph.inputs
        for axis, size in enumerate(graph.type_of(v).shape)
        if size == dimension
    ]
    if places:
        return _once(places)
    for part in dimension.split(","):
        name, colon, axis = part.rpartition(":")
        if not colon or not axis.isdecimal() or name not in graph.inputs:
            open_ones = dict.fromkeys(d for v in graph.inputs for d in graph.type_of(v).symbolic_dims)
            raise ModelError(
                f"no dimension {part!r} to pad; the model's open dimensions: "
                f"{', '.join(open_ones) or 'none'}, its inputs: {', '.join(graph.inputs)} (INPUT:AXIS)"
            )
        if int(axis) >= len(graph.type_of(name).shape):
            raise ModelError(f"input {name!r} has no axis {axis}: it is {graph.type_of(name)}")
        places.append((name, int(axis)))
    return _once(places)


def _once(places: Sequence[tuple[str, int]]) -> dict[str, int]:
    axes = dict(places)
    for v, axis in places:
        if axes[v] != axis:
            raise ModelError(f"input {v!r} has rows along one axis, not along {axis} and {axes[v]}")
    return axes
