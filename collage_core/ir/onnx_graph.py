"""One graph of an ONNX model, the outermost or a body of control flow: what is read of it, and checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import numpy as np
import onnx
from collage_run.open_outputs import OpenOutput
from onnx import helper

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir.bodies import bodies_of, check_bodies, free_name, free_values, renamed
from collage_core.ir.deduction import tensor_type_of
from collage_core.ir.evaluated import evaluated, is_dequantisation
from collage_core.ir.graph import Graph
from collage_core.ir.nodeset import NodeSet
from collage_core.ir.onnx_check import check_operators, check_unique, check_values
from collage_core.ir.onnx_tensors import ExternalData, constant_of, dtype_of, tensor_array
from collage_core.ir.onnx_write import DEQUANTISED_KEY, ID_KEY, INLINE_BYTES, OPEN_KEY, REGION_KEY
from collage_core.ir.regions import REGION_DOMAIN, Part, joined
from collage_core.ir.types import UNKNOWN, Attribute, Node, TensorType, Value, ValueKind

__all__ = ["GraphReader", "declared_type", "require_tensor"]

_WHOSE = "the body"
_MOST_ID_DIGITS = 6
"""Sets of nodes take a bit for every id up to the largest."""


@dataclass(frozen=True, slots=True)
class GraphReader:
    """Reads the graphs of one model.

    trusts_shapes: whether the shapes that the model states are those that it will run with.
    """

    opsets: Mapping[str, int]
    ir_version: int
    external: ExternalData | None
    trusts_shapes: bool

    def graph(
        self, proto: onnx.GraphProto, inputs: Mapping[str, Value], constants: dict[str, Array]
    ) -> Graph:
        """The outermost graph, with `inputs` and the `constants` of its initializers. Values that are
        computed have no types yet.
        """
        nodes, protos = self._nodes(proto, inputs, constants)
        nodes, parts = _with_stored_ids(nodes, protos)
        outputs = [v.name for v in proto.output]
        check_values("the model", nodes, {*inputs, *constants}, outputs)
        nodes, dequantised = self._without_dequantised(nodes, protos, constants)
        graph = self._made(proto, nodes, dict(inputs), constants, outputs)
        graph = graph.replace(dequantised=dequantised, open_outputs=_open_outputs(proto))
        if not parts:
            return graph
        stated = {v.name: declared_type(v) for v in (*proto.value_info, *proto.output)}
        typed = [v for v in graph.intermediates() if v in stated]
        inside = {v: Value(v, stated[v], ValueKind.INTERMEDIATE) for v in typed}
        return joined(graph.replace(values={**graph.values, **inside}), parts)

    def _without_dequantised(
        self, nodes: list[Node], protos: list[onnx.NodeProto], constants: dict[str, Array]
    ) -> tuple[list[Node], dict[str, Node]]:
        """The nodes without those that `to_model` has written for dequantised constants, and these. What they
        yield joins the other constants.
        """
        kept: list[Node] = []
        found: dict[str, Node] = {}
        for node, proto in zip(nodes, protos, strict=True):
            is_ours = any(p.key == DEQUANTISED_KEY for p in proto.metadata_props)
            results = None
            if is_ours and is_dequantisation(node, constants):
                results = evaluated(node, {v: constants[v] for v in node.inputs if v}, self.opsets)
            if results is None:
                kept.append(node)
                continue
            constants |= results
            found[node.outputs[0]] = node
        return kept, found

    def _body(self, proto: onnx.GraphProto) -> Graph:
        for sparse in proto.sparse_initializer:
            raise ModelError(f"sparse initializer {sparse.values.name!r} is not supported")
        check_unique(_WHOSE, "input", [v.name for v in proto.input])
        inputs = {v.name: Value(v.name, self._declared(v), ValueKind.INPUT) for v in proto.input}
        check_unique(_WHOSE, "initializer", [t.name for t in proto.initializer])
        # What a body is always given needs no default.
        constants = {
            t.name: tensor_array(t, self.external) for t in proto.initializer if t.name not in inputs
        }
        nodes, _ = self._nodes(proto, inputs, constants)
        for v, data in constants.items():
            if data.dtype.kind in "OU":
                raise ModelError(f"{v!r} holds texts, which is not supported")
        outputs = [v.name for v in proto.output]
        body = self._made(proto, nodes, dict(inputs), constants, outputs)
        free = free_values(body)
        check_values(_WHOSE, nodes, {*inputs, *constants, *free}, outputs)
        values = {v.name: Value(v.name, self._declared(v), ValueKind.INTERMEDIATE) for v in proto.value_info}
        values |= {v.name: Value(v.name, self._declared(v), ValueKind.INTERMEDIATE) for v in proto.output}
        known = {v: values[v] for v in body.intermediates() if v in values}
        unknown = {v: Value(v, UNKNOWN, ValueKind.INPUT) for v in free}
        return _yielding_own(body.replace(values={**body.values, **known, **unknown}))

    def _nodes(
        self, proto: onnx.GraphProto, inputs: Mapping[str, Value], constants: dict[str, Array]
    ) -> tuple[list[Node], list[onnx.NodeProto]]:
        """The nodes, and what they are read from. Constants among them join the others, as do large ones of
        their bodies.
        """
        nodes: list[Node] = []
        protos: list[onnx.NodeProto] = []
        taken: set[str] = set()
        known = {*inputs, *constants, *_names(proto)}
        for node in proto.node:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                value = constant_of(node, self.external)
                if node.output[0] in constants or node.output[0] in inputs:
                    raise ModelError(f"{node.output[0]!r} is computed twice, again by a Constant")
                constants[node.output[0]] = value
                continue
            read = self._node(node, len(nodes), taken)
            if bodies_of(read):
                read = _with_captures(read, known, constants)
            nodes.append(read)
            protos.append(node)
        check_operators(nodes, protos, self.ir_version, self.opsets)
        for n in nodes:
            if bodies_of(n) and not n.domain:
                check_bodies(n, self.opsets[""])
        return nodes, protos

    def _made(
        self,
        proto: onnx.GraphProto,
        nodes: list[Node],
        values: dict[str, Value],
        constants: Mapping[str, Array],
        outputs: Sequence[str],
    ) -> Graph:
        inputs = list(values)
        for name, data in constants.items():
            values[name] = Value(name, TensorType(data.dtype.name, data.shape), ValueKind.CONSTANT)
        for n in nodes:
            for v in n.outputs:
                if v:
                    values[v] = Value(v, UNKNOWN, ValueKind.INTERMEDIATE)
        return Graph(proto.name or "graph", nodes, values, inputs, outputs, constants, self.opsets)

    def _declared(self, info: onnx.ValueInfoProto) -> TensorType:
        type = declared_type(info)
        if type.dtype == "object":
            raise ModelError(f"{info.name!r} holds texts, which is not supported")
        return type if self.trusts_shapes else UNKNOWN

    def _node(self, proto: onnx.NodeProto, position: int, taken: set[str]) -> Node:
        name = free_name(proto.name or f"{proto.op_type}_{position}", taken)
        if proto.domain == REGION_DOMAIN:
            raise ModelError(f"node {name!r} is of the domain {REGION_DOMAIN!r}, which has no operators")
        taken.add(name)
        return Node(
            position,
            name,
            proto.op_type,
            tuple(proto.input),
            tuple(proto.output),
            {a.name: self._attribute(name, a) for a in proto.attribute},
            "" if proto.domain == "ai.onnx" else proto.domain,
        )

    def _attribute(self, node: str, attribute: onnx.AttributeProto) -> Attribute:
        kind = onnx.AttributeProto
        if attribute.type == kind.GRAPH:
            try:
                return self._body(attribute.g)
            except ModelError as error:
                raise ModelError(f"node {node!r}, {attribute.name}: {error}") from None
        what = f"node {node!r}: attribute {attribute.name!r}"
        if attribute.ref_attr_name:
            raise ModelError(f"{what} refers to an attribute of a function, and is in none")
        value = helper.get_attribute_value(attribute)
        try:
            if attribute.type == kind.TENSOR:
                return tensor_array(value, None, what)
            if attribute.type == kind.STRING:
                return value.decode()
            if attribute.type == kind.STRINGS:
                return tuple(s.decode() for s in value)
        except UnicodeDecodeError:
            raise ModelError(f"{what} is not UTF-8") from None
        if attribute.type in (kind.INTS, kind.FLOATS):
            return tuple(value)
        if attribute.type in (kind.INT, kind.FLOAT, kind.TYPE_PROTO):
            return value
        raise ModelError(f"{what} has a type that is not supported")


def require_tensor(info: onnx.ValueInfoProto) -> None:
    """ModelError for an input or output that is stated to be something else."""
    kind = info.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        name = kind.removesuffix("_type")
        article = "an" if name == "optional" else "a"
        raise ModelError(f"value {info.name!r} is {article} {name}, not a tensor: not supported")


def declared_type(info: onnx.ValueInfoProto) -> TensorType:
    """The type that a model states; UNKNOWN where that is not all of it, and for what is no tensor."""
    if info.type.WhichOneof("value") != "tensor_type":
        return UNKNOWN
    if element_type := info.type.tensor_type.elem_type:
        dtype_of(element_type, f"value {info.name!r}")
    return tensor_type_of(info.type, info.name)


def _names(proto: onnx.GraphProto) -> Iterator[str]:
    """All names that occur in a graph, bodies included."""
    for node in proto.node:
        yield from (*node.input, *node.output)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _names(attribute.g)
    yield from (v.name for v in proto.output)


def _with_captures(node: Node, known: set[str], constants: dict[str, Array]) -> Node:
    """The node with what its bodies read as inputs, and names for all outputs. Large constants of the bodies
    become those of the graph, for which a name not `known` is found: bodies are written with all that they
    hold.
    """
    attributes = dict(node.attributes)
    for attribute, body in bodies_of(node).items():
        large = [v for v, data in body.constants.items() if data.nbytes > INLINE_BYTES]
        names: dict[str, str] = {}
        for v in large:
            names[v] = free_name(v, known | body.values.keys() - {v})
            known.add(names[v])
            constants[names[v]] = body.constants[v]
        body = renamed(body, names)
        kept = {v: data for v, data in body.constants.items() if v not in names.values()}
        attributes[attribute] = body.replace(constants=kept)
    node = dataclasses.replace(node, attributes=attributes)
    captures = tuple(dict.fromkeys(v for b in bodies_of(node).values() for v in free_values(b)))
    node = dataclasses.replace(
        node, inputs=node.inputs + captures, captures=captures, outputs=_named_outputs(node, known)
    )
    return _with_ignored_condition(node)


def _named_outputs(node: Node, known: set[str]) -> tuple[str, ...]:
    """A body yields all of them, and ONNX Runtime wants a name for each."""
    outputs = list(node.outputs)
    for k, v in enumerate(outputs):
        if not v:
            outputs[k] = free_name(f"{node.name}.{k}", known)
            known.add(outputs[k])
    return tuple(outputs)


def _with_ignored_condition(node: Node) -> Node:
    """A Loop without a condition takes no notice of the one that its body yields; not every library knows."""
    given = node.formal_inputs
    if node.op_type != "Loop" or node.domain or any(given[1:2]):
        return node
    if not any(given[:1]):
        raise ModelError(f"node {node} has neither a trip count nor a condition: it would never end")
    body = bodies_of(node).get("body")
    if body is None or not body.outputs:
        return node  # which is told later
    yielding = body.producer(body.outputs[0])
    if yielding is not None and yielding.op_type == "Identity":
        kept = body.constants.get(yielding.inputs[0])
        if kept is not None and kept.all():
            return node
    name = free_name("condition", body.values)
    constants = {**body.constants, name: np.array(True)}
    values = {**body.values, name: Value(name, TensorType("bool", ()), ValueKind.CONSTANT)}
    body = body.replace(outputs=[name, *body.outputs[1:]], constants=constants, values=values)
    return dataclasses.replace(node, attributes={**node.attributes, "body": _yielding_own(body)})


def _yielding_own(body: Graph) -> Graph:
    """The body with an Identity for each output that no node of it computes, or that it yields twice: no
    library takes such outputs as they are.
    """
    nodes, values, outputs = list(body.nodes), dict(body.values), list(body.outputs)
    computed = set(body.intermediates())
    taken = {n.name for n in nodes}
    for k, v in enumerate(outputs):
        if v in computed and v not in outputs[:k]:
            continue
        outputs[k] = free_name(f"{v}.yielded", values)
        name = free_name(f"yield.{k}", taken)
        taken.add(name)
        nodes.append(Node(len(nodes), name, "Identity", (v,), (outputs[k],)))
        values[outputs[k]] = Value(outputs[k], values[v].type, ValueKind.INTERMEDIATE)
    return body.replace(nodes=nodes, values=values, outputs=outputs)


def _with_stored_ids(nodes: list[Node], protos: list[onnx.NodeProto]) -> tuple[list[Node], list[Part]]:
    """The nodes with the ids that `to_model` has stored, and which of them are regions, unless another tool
    has added, doubled or changed some.
    """
    stored = [p.value for n in protos for p in n.metadata_props if p.key == ID_KEY]
    told = [next((p.value for p in n.metadata_props if p.key == REGION_KEY), "") for n in protos]
    named = {text: text.partition(" ") for text in told if text}
    texts = [*stored, *(id for id, _, _ in named.values())]
    ids = [int(i) for i in texts if len(i) <= _MOST_ID_DIGITS and i.isdecimal()]
    is_whole = len(stored) + sum(map(bool, told)) == len(nodes)
    if not is_whole or not len(ids) == len(set(ids)) == len(texts):
        return nodes, []
    inside = count(max(ids, default=-1) + 1)  # what is in a region has ids of its own there
    outside = iter(ids)
    numbered = [
        dataclasses.replace(n, id=next(inside) if text else next(outside))
        for n, text in zip(nodes, told, strict=True)
    ]
    parts = [
        Part(int(id), name, NodeSet(n.id for n, t in zip(numbered, told, strict=True) if t == text))
        for text, (id, _, name) in named.items()
    ]
    return numbered, parts


def _open_outputs(proto: onnx.GraphProto) -> dict[str, OpenOutput]:
    """As `to_model` has stored them; without those that another tool has changed."""
    types = {v.name: declared_type(v) for v in proto.output}
    found: dict[str, OpenOutput] = {}
    for v in proto.output:
        for text in (p.value for p in v.metadata_props if p.key == OPEN_KEY):
            with suppress(ValueError, KeyError, TypeError):
                told = json.loads(text)
                opened = OpenOutput(told["sizes"], TensorType(types[v.name].dtype, tuple(told["shape"])))
                rank = len(types[v.name].shape)
                if len(opened.type.shape) == rank and types[opened.sizes] == TensorType("int64", (rank,)):
                    found[v.name] = opened
    return found
