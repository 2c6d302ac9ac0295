"""A part of a graph: what it reads, what it yields, whether it may become one kernel, and what makes two of
them the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from collage_core.formats import Array
from collage_core.ir.graph import Graph
from collage_core.ir.nodeset import NodeSet
from collage_core.ir.types import Attribute, Node

__all__ = ["Subgraph"]

_SMALL_CONSTANT_ELEMENTS = 16


class Subgraph:
    """The nodes `nodes` of `graph`.

    inputs: names of the non-constant values read from outside, in order of first use.
    constants: names of the constants read, in order of first use.
    outputs: names of the values computed inside that somebody outside reads or the graph returns. A matcher
    that knows which
        outputs it means passes them; `leaks` then tells the values that escape without being among them.
    """

    def __init__(
        self, graph: Graph, nodes: NodeSet | Iterable[int], outputs: Iterable[str] | None = None
    ) -> None:
        self.graph = graph
        self.node_set = nodes if isinstance(nodes, NodeSet) else NodeSet(nodes)
        self._declared_outputs = None if outputs is None else tuple(outputs)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same part of the same graph. What one kernel serves has the same `key`."""
        if not isinstance(other, Subgraph):
            return NotImplemented
        same = self.graph is other.graph and self.node_set == other.node_set
        return same and self.outputs == other.outputs

    def __hash__(self) -> int:
        return hash((id(self.graph), self.node_set))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in topological order."""
        if self.node_set == self.graph.all_nodes:
            return self.graph.nodes
        position = self.graph.positions
        return tuple(self.graph.node(i) for i in sorted(self.node_set, key=position.__getitem__))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(v for v in self._read if not self.graph.is_constant(v))

    @cached_property
    def constants(self) -> tuple[str, ...]:
        return tuple(v for v in self._read if self.graph.is_constant(v))

    @cached_property
    def dequantised(self) -> tuple[str, ...]:
        """Those of the constants that the model stores as whole numbers."""
        return tuple(v for v in self.constants if v in self.graph.dequantised)

    @cached_property
    def stored_constants(self) -> tuple[str, ...]:
        """What the model stores: in place of constants that are dequantised what they come from."""
        made = self.graph.dequantised
        found = ([i for i in made[v].inputs if i] if v in made else [v] for v in self.constants)
        return tuple(dict.fromkeys(v for names in found for v in names))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return self._escaping if self._declared_outputs is None else self._declared_outputs

    @cached_property
    def leaks(self) -> tuple[str, ...]:
        """Values that are read outside, or returned by the graph, though they are not among `outputs`."""
        return tuple(v for v in self._escaping if v not in self.outputs)

    @cached_property
    def is_convex(self) -> bool:
        """Whether no path leaves the subgraph and comes back: an illegal kernel would have to wait for
        itself.
        """
        below, above = NodeSet(), NodeSet()
        for i in self.node_set:
            below = below | self.graph.descendants(i)
            above = above | self.graph.ancestors(i)
        return (below & above) <= self.node_set

    @cached_property
    def key(self) -> str:
        """Structural key (hex): equal for subgraphs that one kernel serves, weights apart.

        It covers operators, domains, attributes, bodies, opsets, types, which inputs are constant, how inputs
        are shared, which values are outputs and in which order, and the values of small and of integer
        constants, which a kernel may bake in. Of dequantised constants it covers what they come from: how it
        is stored, and its zero points.
        """
        if self._declared_outputs is not None:
            return self._key()
        # Of one graph the same groups are found again and again, for every backend.
        known = self.graph.structural_keys
        if self.node_set not in known:
            known[self.node_set] = self._key()
        return known[self.node_set]

    def _key(self) -> str:
        types, parts = self.graph.type_texts, self.graph.node_texts
        names: dict[str, str] = {}
        text: list[str] = [
            f"opsets {sorted((d, self.graph.opsets.get(d)) for d in {n.domain for n in self.nodes})}"
        ]
        for i, v in enumerate(self.inputs):
            names[v] = f"i{i}"
            text.append(f"i{i}:{types[v]}")
        for i, v in enumerate(self.constants):
            names[v] = f"c{i}"
            text.append(f"c{i}:{types[v]}{self._constant_digest(v)}")
        for i, n in enumerate(self.nodes):
            for k, v in enumerate(n.outputs):
                if v:
                    names[v] = f"n{i}.{k}"
            reads = ",".join([names[v] if v else "_" for v in n.inputs])
            if n.id not in parts:
                writes = ",".join(types[v] if v else "_" for v in n.outputs)
                attributes = (f"{k}={_attribute_digest(n, a)}" for k, a in sorted(n.attributes.items()))
                parts[n.id] = f"{n.domain}::{n.op_type}", f"[{','.join(attributes)}]->{writes}"
            operator, rest = parts[n.id]
            text.append(f"{operator}({reads}){rest}")
        # The whole graph may return what it was given, or a constant.
        text.append("return " + ",".join([names.get(v) or f"{v}:{types[v]}" for v in self.outputs]))
        return hashlib.sha256("\n".join(text).encode()).hexdigest()[:32]

    @cached_property
    def _read(self) -> tuple[str, ...]:
        inside = {v for n in self.nodes for v in n.outputs}
        return tuple(dict.fromkeys(v for n in self.nodes for v in n.inputs if v and v not in inside))

    @cached_property
    def _escaping(self) -> tuple[str, ...]:
        return tuple(
            v
            for n in self.nodes
            for v in n.outputs
            if v
            and (self.graph.is_output(v) or any(c.id not in self.node_set for c in self.graph.consumers(v)))
        )

    def _constant_digest(self, value: str) -> str:
        node = self.graph.dequantised.get(value)
        return self._data_digest(value) + ("" if node is None else self._dequantised_digest(node))

    def _dequantised_digest(self, node: Node) -> str:
        types = [self.graph.type_texts[v] for v in node.inputs if v]
        zero_points = [_array_digest(self.graph.constants[v]) for v in node.inputs[2:] if v]
        return f"<-{node.op_type}{sorted(node.attributes.items())}{types}{zero_points}"

    def _data_digest(self, value: str) -> str:
        data = self.graph.constants[value]
        if data.size <= _SMALL_CONSTANT_ELEMENTS or not np.issubdtype(data.dtype, np.floating):
            return "=" + _array_digest(data)
        return ""

    def __str__(self) -> str:
        return "+".join(n.op_type for n in self.nodes)

    def __repr__(self) -> str:
        return f"Subgraph({self}: {', '.join(n.name for n in self.nodes)})"


def _attribute_digest(node: Node, attribute: Attribute) -> str:
    if isinstance(attribute, np.ndarray):
        return f"{attribute.dtype}{attribute.shape}{_array_digest(attribute)}"
    if isinstance(attribute, Graph):
        body = Subgraph(attribute, attribute.all_nodes, attribute.outputs)
        # Which of what the node is given is which input of the body, whose own names do not count.
        given = (*attribute.inputs, *node.captures)
        places = [body.inputs.index(v) if v in body.inputs else -1 for v in given]
        return f"{body.key}{len(node.captures)}{places}"
    return repr(attribute)


def _array_digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]
