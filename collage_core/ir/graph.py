"""The immutable graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from collage_run.open_outputs import OpenOutput

from collage_core.errors import ModelError
from collage_core.formats import Array, Format, plain
from collage_core.ir.nodeset import NodeSet
from collage_core.ir.types import Node, TensorType, Value, ValueKind

__all__ = ["Graph"]


class Graph:
    """An ONNX graph: nodes in topological order, typed values by name, constants' data, and the opsets it
    speaks.

    dequantised: by constant, the DequantizeLinear that yields it from other constants: floats that a model
    stores as whole numbers. It is none of the nodes. Kernels read the floats, or, if they multiply whole
    numbers, what these come from.
    open_outputs: by output, of those whose shapes are known only when the graph has run. The values that hold
    their sizes are outputs, too.

    Never changed after construction; a pass makes a new one with `replace`. Shared parts are shared, so that
    is cheap.
    """

    def __init__(
        self,
        name: str,
        nodes: Iterable[Node],
        values: Mapping[str, Value],
        inputs: Iterable[str],
        outputs: Iterable[str],
        constants: Mapping[str, Array],
        opsets: Mapping[str, int],
    ) -> None:
        self.name = name
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.values = dict(values)
        self.inputs: tuple[str, ...] = tuple(inputs)
        self.outputs: tuple[str, ...] = tuple(outputs)
        self.constants = dict(constants)
        self.opsets = dict(opsets)
        self.dequantised: dict[str, Node] = {}
        self.open_outputs: dict[str, OpenOutput] = {}

    def replace(
        self,
        *,
        nodes: Iterable[Node] | None = None,
        values: Mapping[str, Value] | None = None,
        constants: Mapping[str, Array] | None = None,
        outputs: Iterable[str] | None = None,
        opsets: Mapping[str, int] | None = None,
        dequantised: Mapping[str, Node] | None = None,
        open_outputs: Mapping[str, OpenOutput] | None = None,
    ) -> Graph:
        """A copy with some parts changed. What is said of constants that go or change goes with them."""
        made = Graph(
            self.name,
            self.nodes if nodes is None else nodes,
            self.values if values is None else values,
            self.inputs,
            self.outputs if outputs is None else outputs,
            self.constants if constants is None else constants,
            self.opsets if opsets is None else opsets,
        )

        def stays(v: str) -> bool:
            return v in made.constants and made.constants[v] is self.constants.get(v, made.constants[v])

        told = self.dequantised if dequantised is None else dequantised
        made.dequantised = {v: n for v, n in told.items() if all(map(stays, (v, *filter(None, n.inputs))))}
        opened = self.open_outputs if open_outputs is None else open_outputs
        made.open_outputs = {v: o for v, o in opened.items() if {v, o.sizes} <= set(made.outputs)}
        return made

    def node(self, id: int) -> Node:
        return self._nodes_by_id[id]

    def node_named(self, name: str) -> Node:
        """The node of that name; ModelError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ModelError(f"no node is named {name!r} in graph {self.name!r}")

    def type_of(self, value: str) -> TensorType:
        return self.values[value].type

    def shape_of(self, value: str) -> tuple[int, ...]:
        """Static shape of a value (ValueError if a dimension is symbolic)."""
        return self.values[value].type.static_shape

    def plain_format(self, value: str) -> Format:
        """The row-major format of a value: how inputs arrive and outputs are delivered."""
        return plain(self.type_of(value).dtype, self.shape_of(value))

    def is_constant(self, value: str) -> bool:
        return value in self.constants

    def producer(self, value: str) -> Node | None:
        """The node that computes the value; None for inputs, constants and state."""
        return self._producers.get(value)

    def consumers(self, value: str) -> tuple[Node, ...]:
        """The nodes that read the value, each once, in graph order."""
        return self._consumers.get(value, ())

    def is_output(self, value: str) -> bool:
        return value in self._output_set

    @cached_property
    def all_nodes(self) -> NodeSet:
        return NodeSet(n.id for n in self.nodes)

    def ancestors(self, id: int) -> NodeSet:
        """All nodes from which a path leads to node `id`, without itself."""
        return self._ancestors[id]

    def descendants(self, id: int) -> NodeSet:
        """All nodes to which a path leads from node `id`, without itself."""
        return self._descendants[id]

    def predecessors(self, id: int) -> tuple[Node, ...]:
        """Producers of the node's inputs, each once."""
        found = {p.id: p for v in self.node(id).inputs if v and (p := self.producer(v)) is not None}
        return tuple(found.values())

    def successors(self, id: int) -> tuple[Node, ...]:
        """Consumers of the node's outputs, each once."""
        found = {c.id: c for v in self.node(id).outputs for c in self.consumers(v)}
        return tuple(found.values())

    @cached_property
    def positions(self) -> dict[int, int]:
        """Position of every node id in topological order."""
        return {n.id: i for i, n in enumerate(self.nodes)}

    @cached_property
    def type_texts(self) -> dict[str, str]:
        """Every value's type as text."""
        return {name: str(value.type) for name, value in self.values.items()}

    @cached_property
    def node_texts(self) -> dict[int, tuple[str, str]]:
        """What `Subgraph.key` says of nodes (by id) before and behind what they read, once it has said it."""
        return {}

    @cached_property
    def structural_keys(self) -> dict[NodeSet, str]:
        """`Subgraph.key` of node sets, once it was asked for."""
        return {}

    @cached_property
    def _nodes_by_id(self) -> dict[int, Node]:
        return {n.id: n for n in self.nodes}

    @cached_property
    def _output_set(self) -> frozenset[str]:
        return frozenset(self.outputs)

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {v: n for n in self.nodes for v in n.outputs if v}

    @cached_property
    def _consumers(self) -> dict[str, tuple[Node, ...]]:
        found: dict[str, dict[int, Node]] = {}
        for n in self.nodes:
            for v in n.inputs:
                if v:
                    found.setdefault(v, {})[n.id] = n
        return {v: tuple(ns.values()) for v, ns in found.items()}

    @cached_property
    def _ancestors(self) -> dict[int, NodeSet]:
        result: dict[int, NodeSet] = {}
        for n in self.nodes:
            reached = NodeSet()
            for p in self.predecessors(n.id):
                reached = reached | result[p.id] | NodeSet([p.id])
            result[n.id] = reached
        return result

    @cached_property
    def _descendants(self) -> dict[int, NodeSet]:
        result: dict[int, NodeSet] = {}
        for n in reversed(self.nodes):
            reached = NodeSet()
            for s in self.successors(n.id):
                reached = reached | result[s.id] | NodeSet([s.id])
            result[n.id] = reached
        return result

    def intermediates(self) -> Iterable[str]:
        """Names of all values that nodes compute, in graph order."""
        return (v for n in self.nodes for v in n.outputs if v)

    def variable_inputs(self) -> Iterable[str]:
        """Names of inputs and state, in the model's order."""
        return (v for v in self.inputs if self.values[v].kind in (ValueKind.INPUT, ValueKind.STATE))

    def __str__(self) -> str:
        lines = [f"graph {self.name}({', '.join(f'{v}: {self.type_of(v)}' for v in self.inputs)})"]
        for n in self.nodes:
            outputs = ", ".join(f"{v}: {self.type_of(v)}" if v else "_" for v in n.outputs)
            inputs = ", ".join(v or "_" for v in n.inputs)
            lines.append(f"  {n.id:>4} {n.name}: {outputs} = {n.op_type}({inputs})")
        lines.append(f"  return {', '.join(self.outputs)}")
        return "\n".join(lines)
