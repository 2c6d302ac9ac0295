"""Bring old models to one opset, so that plugins need to know one form of each operator."""

from __future__ import annotations

import dataclasses

import onnx
import onnx.version_converter

from collage_core.ir.bodies import free_name, inner_nodes
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_check import CHANGED_MEANING
from collage_core.ir.onnx_read import from_model, infer_types
from collage_core.ir.onnx_write import to_model
from collage_core.ir.passes.base import Pass
from collage_core.ir.types import UNKNOWN, Node, Value, ValueKind

__all__ = ["TARGET_OPSET", "UPGRADE_OPSET"]

TARGET_OPSET = 20
"""The first opset with Gelu. Newer models stay as they are."""
_FIRST_SCAN = 9


def _upgrade(graph: Graph) -> Graph:
    """The converter rewrites bodies of control flow like the rest. What it gets wrong is mended, but for the
    Scan of opset 8, which loses its batches, and for bodies: a model with such stays in its own opset.
    """
    opset = graph.opsets.get("", TARGET_OPSET)
    if opset >= TARGET_OPSET or (opset < _FIRST_SCAN and _has_scan(graph)):
        return graph
    inside = (i for n in graph.nodes for i in inner_nodes(n))
    if any(opset < CHANGED_MEANING.get(i.op_type, 0) for i in inside if not i.domain):
        return graph
    # Large constants travel as inputs: the converter needs their types only, and would copy them several
    # times.
    model = to_model(graph, large_constants_as_inputs=True)
    try:
        converted = from_model(onnx.version_converter.convert_version(model, TARGET_OPSET))
    except Exception:  # onnx raises several unrelated types here
        return graph  # an operator without an adapter: the model works as it is, in its own opset
    by_output = {v: n for n in graph.nodes for v in n.outputs if v}
    names = {*graph.values, *converted.values}
    next_id = max((n.id for n in graph.nodes), default=-1) + 1
    taken = {n.name for n in graph.nodes}
    nodes: list[Node] = []
    for n in (m for c in converted.nodes for m in _mended(c, graph.opsets[""], names)):
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
    known = {**converted.values, **{v: graph.values[v] for v in (*graph.inputs, *graph.constants)}}
    new = {v: Value(v, UNKNOWN, ValueKind.INTERMEDIATE) for n in nodes for v in n.outputs if v}
    values = {**new, **known}
    return infer_types(
        graph.replace(nodes=nodes, values=values, constants=constants, opsets=converted.opsets)
    )


def _mended(node: Node, opset: int, taken: set[str]) -> list[Node]:
    """What the converter (onnx 1.23) should have made of a node whose meaning has changed since `opset`, that
    of the source. taken: names of values; new ones are added.
    """
    if node.domain or opset >= CHANGED_MEANING.get(node.op_type, 0):
        return [node]
    if node.op_type == "Resize":
        # There was but one way to read coordinates, which is not the default now.
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return [dataclasses.replace(node, attributes={**node.attributes, **modes})]
    return _flattened(node, taken)


def _flattened(node: Node, taken: set[str]) -> list[Node]:
    """The node for which all dimensions from `axis` on counted as one."""
    (x,), (y,) = node.inputs, node.outputs
    shape, rows, found = (free_name(f"{y}/{what}", taken) for what in ("shape", "rows", node.op_type))
    taken |= {shape, rows, found}
    steps: list[tuple[str, tuple[str, ...], str, dict[str, int]]] = [
        ("Shape", (x,), shape, {}),
        ("Flatten", (x,), rows, {"axis": node.attributes.get("axis", 1)}),
        (node.op_type, (rows,), found, {"axis": -1}),
        ("Reshape", (found, shape), y, {}),
    ]
    return [
        Node(node.id, f"{node.name}/{op_type}", op_type, inputs, (output,), attributes)
        for op_type, inputs, output, attributes in steps
    ]


def _has_scan(graph: Graph) -> bool:
    return any(i.op_type == "Scan" for n in graph.nodes for i in (n, *inner_nodes(n)))


UPGRADE_OPSET = Pass(
    "upgrade-opset", f"bring ONNX operators to opset {TARGET_OPSET} where every one has an adapter", _upgrade
)
