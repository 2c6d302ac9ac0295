"""Bring old models to one opset, so that plugins need to know one form of each operator."""

from __future__ import annotations

import dataclasses

import onnx
import onnx.version_converter

from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import from_model, infer_types
from collage_core.ir.onnx_write import to_model
from collage_core.ir.passes.base import Pass
from collage_core.ir.types import Node

__all__ = ["TARGET_OPSET", "UPGRADE_OPSET"]

TARGET_OPSET = 20
"""The first opset with Gelu. Newer models stay as they are."""


def _upgrade(graph: Graph) -> Graph:
    if graph.opsets.get("", TARGET_OPSET) >= TARGET_OPSET:
        return graph
    # Large constants travel as inputs: the converter needs their types only, and would copy them several
    # times.
    model = to_model(graph, large_constants_as_inputs=True)
    try:
        converted = from_model(onnx.version_converter.convert_version(model, TARGET_OPSET))
    except Exception:  # onnx raises several unrelated types here
        return graph  # an operator without an adapter: the model works as it is, in its own opset
    by_output = {v: n for n in graph.nodes for v in n.outputs if v}
    next_id = max((n.id for n in graph.nodes), default=-1) + 1
    taken = {n.name for n in graph.nodes}
    nodes: list[Node] = []
    for n in converted.nodes:
        source = next((by_output[v] for v in n.outputs if v in by_output), None)
        if source is None:
            nodes.append(dataclasses.replace(n, id=next_id, name=_free_name(n.name, taken)))
            next_id += 1
        else:
            nodes.append(dataclasses.replace(n, id=source.id, name=source.name))
    constants = {**converted.constants, **graph.constants}
    values = {**converted.values, **{v: graph.values[v] for v in (*graph.inputs, *graph.constants)}}
    return infer_types(
        graph.replace(nodes=nodes, values=values, constants=constants, opsets=converted.opsets)
    )


def _free_name(name: str, taken: set[str]) -> str:
    """`name`, or one made of it that is free: where one node becomes two, it may still go by the one's."""
    free, k = name, 1
    while free in taken:
        free, k = f"{name}_{k}", k + 1
    taken.add(free)
    return free


UPGRADE_OPSET = Pass(
    "upgrade-opset", f"bring ONNX operators to opset {TARGET_OPSET} where every one has an adapter", _upgrade
)
