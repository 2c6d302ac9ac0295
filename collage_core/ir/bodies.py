"""Bodies of If, Loop and Scan: graphs among a node's attributes, which may read what lies outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from collage_core.errors import ModelError
from collage_core.ir.graph import Graph
from collage_core.ir.types import Node, TensorType, Value, ValueKind

__all__ = [
    "bodies_of",
    "check_bodies",
    "closed",
    "free_name",
    "free_values",
    "in_place",
    "inner_nodes",
    "renamed",
]


def bodies_of(node: Node) -> dict[str, Graph]:
    """The node's bodies, by the attributes that hold them."""
    return {name: a for name, a in node.attributes.items() if isinstance(a, Graph)}


def inner_nodes(node: Node) -> Iterator[Node]:
    """The nodes of all bodies, those of nested ones included."""
    for body in bodies_of(node).values():
        for n in body.nodes:
            yield n
            yield from inner_nodes(n)


def free_values(body: Graph) -> tuple[str, ...]:
    """What the body reads and does not have itself, each once, in order of first use."""
    own = {*body.inputs, *body.constants, *body.intermediates()}
    read = (*(v for n in body.nodes for v in n.inputs), *body.outputs)
    return tuple(dict.fromkeys(v for v in read if v and v not in own))


def free_name(name: str, taken: Collection[str]) -> str:
    """`name`, or one made of it that is not taken."""
    free, k = name, 1
    while free in taken:
        free, k = f"{name}_{k}", k + 1
    return free


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for some of its values; the others must not have these already."""

    def new(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(v, v) for v in values)

    return Graph(
        graph.name,
        [dataclasses.replace(n, inputs=new(n.inputs), outputs=new(n.outputs)) for n in graph.nodes],
        {new((v,))[0]: dataclasses.replace(value, name=new((v,))[0]) for v, value in graph.values.items()},
        new(graph.inputs),
        new(graph.outputs),
        {new((v,))[0]: data for v, data in graph.constants.items()},
        graph.opsets,
    )


def closed(graph: Graph, node: Node, body: Graph, types: Mapping[str, TensorType]) -> Graph:
    """The body as a graph of its own. What it reads from outside becomes its inputs and constants, after its
    own inputs, which are of these `types`.
    """
    values = dict(body.values)
    inputs = list(body.inputs)
    constants = dict(body.constants)
    for name, type in types.items():
        values[name] = Value(name, type, ValueKind.INPUT)
    captured = node.captured
    for name in free_values(body):
        outside = captured[name]
        values[name] = dataclasses.replace(graph.values[outside], name=name)
        if graph.is_constant(outside):
            constants[name] = graph.constants[outside]
        else:
            inputs.append(name)
    return Graph(body.name, body.nodes, values, inputs, body.outputs, constants, body.opsets)


def in_place(node: Node, body: Graph, taken: Collection[str]) -> Graph:
    """The body by the names that the graph has for what it reads and yields, and free ones otherwise."""
    # A body computes each of its outputs, and none twice; see the reader of bodies.
    names = {v: node.captured[v] for v in free_values(body)}
    names |= {v: yielded for v, yielded in zip(body.outputs, node.outputs, strict=True) if yielded}
    known = {*taken, *body.values}
    for v in body.values:
        if v not in names and v in taken:
            names[v] = free_name(f"{node.name}.{v}", known)
            known.add(names[v])
    return renamed(body, names)


def check_bodies(node: Node, opset: int) -> None:
    """ModelError unless the bodies of an If, Loop or Scan take and yield as many values as the node does."""
    bodies = bodies_of(node)
    given, wanted = len(node.formal_inputs), len(node.outputs)
    match node.op_type, list(bodies.values()):
        case "If", [_, _]:
            for name, body in bodies.items():
                _require(node, name, "inputs", len(body.inputs), 0)
                _require(node, name, "outputs", len(body.outputs), wanted)
        case "Loop", [body]:
            _require(node, "body", "inputs", len(body.inputs), max(given, 2))
            _require(node, "body", "outputs", len(body.outputs), wanted + 1)
        case "Scan", [body]:
            scanned = node.attributes.get("num_scan_inputs", 0)
            inputs = given - (1 if opset < 9 else 0)
            if not 1 <= scanned <= inputs:
                raise ModelError(f"node {node}: num_scan_inputs is {scanned}, of {inputs} inputs")
            _require(node, "body", "inputs", len(body.inputs), inputs)
            _require(node, "body", "outputs", len(body.outputs), wanted)
    carried = max(given - 2, 0) if node.op_type == "Loop" else 0
    if wanted < carried:
        raise ModelError(f"node {node}: {carried} values are carried on, and {wanted} are returned")


def _require(node: Node, body: str, what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ModelError(f"node {node}: its {body} has {found} {what}, which should be {wanted}")
