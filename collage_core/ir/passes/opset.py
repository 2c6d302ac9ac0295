"""Bring old models to one opset, so that plugins need to know one form of each operator."""

from __future__ import annotations

import dataclasses

import onnx
import onnx.version_converter

from collage_core.ir.bodies import free_name, inner_nodes
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import from_model, infer_types
from collage_core.ir.onnx_write import to_model
from collage_core.ir.passes.base import Pass
from collage_core.ir.types import Node

__all__ = ["TARGET_OPSET", "UPGRADE_OPSET"]

TARGET_OPSET = 20
"""The first opset with Gelu. Newer models stay as they are."""


def _upgrade(graph: Graph) -> Graph:
    """The converter rewrites bodies of control flow like the rest. The one operator that it gets wrong is the
    Scan of opset 8, which loses its batches: a model with one stays in its own opset.
    """
    opset = graph.opsets.get("", TARGET_OPSET)
    if opset >= TARGET_OPSET or (opset < 9 and _has_scan(graph)):
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
            # Where one node becomes two, it may still go by the one's name.
            name = free_name(n.name, taken)
            taken.add(name)
            nodes.append(dataclasses.replace(n, id=next_id, name=name))
            next_id += 1
        else:
            nodes.append(dataclasses.replace(n, id=source.id, name=source.name))
    constants = {**converted.constants, **graph.constants}
    values = {**converted.values, **{v: graph.values[v] for v in (*graph.inputs, *graph.constants)}}
    return infer_types(
        graph.replace(nodes=nodes, values=values, constants=constants, opsets=converted.opsets)
    )


def _has_scan(graph: Graph) -> bool:
    return any(i.op_type == "Scan" for n in graph.nodes for i in (n, *inner_nodes(n)))


UPGRADE_OPSET = Pass(
    "upgrade-opset", f"bring ONNX operators to opset {TARGET_OPSET} where every one has an adapter", _upgrade
)
