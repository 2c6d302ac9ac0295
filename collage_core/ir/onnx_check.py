"""What ONNX demands of a model, told in the model's own names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx.checker
import onnx.defs

from collage_core.errors import ModelError
from collage_core.ir.types import Node

__all__ = [
    "CHANGED_MEANING",
    "check_operators",
    "check_texts",
    "check_unique",
    "check_values",
    "check_versions",
    "one_line",
]

_EXCERPT_CHARACTERS = 300

CHANGED_MEANING = {"Hardmax": 13, "Resize": 11, "Upsample": 11}
"""Operators that `onnx`'s version converter (1.23) brings past these opsets without regard to what changed in
them, which is an attribute's default.
"""


def one_line(error: Exception) -> str:
    """What an exception of `onnx` or protobuf says, in one line that is not too long."""
    return " ".join(str(error).split())[:_EXCERPT_CHARACTERS] or type(error).__name__


def check_texts(model: onnx.ModelProto) -> None:
    """ModelError if a name is not UTF-8, as which protobuf then hands out bytes."""
    for text in (*_texts(model), *_graph_texts(model.graph)):
        if not isinstance(text, str):
            raise ModelError(f"the name {text!r} in the model is not UTF-8")


def _texts(model: onnx.ModelProto) -> Iterator[str]:
    for opset in (*model.opset_import, *(o for f in model.functions for o in f.opset_import)):
        yield opset.domain
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
        yield from _node_texts(function.node)


def _graph_texts(graph: onnx.GraphProto) -> Iterator[str]:
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    yield from _node_texts(graph.node)


def _node_texts(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (text for entry in node.metadata_props for text in (entry.key, entry.value))
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name, attribute.t.name)
            if attribute.HasField("g"):
                yield from _graph_texts(attribute.g)


def check_versions(model: onnx.ModelProto) -> dict[str, int]:
    """The opsets that the model imports, by domain; ModelError if they, or the format, are newer than what
    the installed `onnx` knows: operators may mean something else by then.
    """
    known = f"the installed onnx {onnx.__version__} knows up to"
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"the model has the newer ONNX format {model.ir_version}; {known} {onnx.IR_VERSION}: update onnx"
        )
    newest = {domain: last for domain, (_, last) in onnx.defs.C.schema_version_map().items()}
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"the model imports two opsets of {domain!r}: {opsets[domain]}, {entry.version}")
        if entry.version > newest.get(domain, entry.version):
            raise ModelError(
                f"the model needs opset {entry.version} of {domain or 'ONNX'}; {known} {newest[domain]}: "
                "update onnx"
            )
    return opsets


def check_unique(whose: str, what: str, names: Iterable[str]) -> None:
    """ModelError if a name occurs twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ModelError(f"{whose} has {count} {what}s named {name!r}")


def check_operators(
    nodes: Sequence[Node], protos: Sequence[onnx.NodeProto], ir_version: int, opsets: Mapping[str, int]
) -> None:
    """ModelError, with the node, for an operator of ONNX that does not exist, or is given what it does not
    take. Those of other domains are left to the backends.
    """
    context = onnx.checker.C.CheckerContext()
    context.ir_version = ir_version or onnx.IR_VERSION
    context.opset_imports = dict(opsets)
    for node, proto in zip(nodes, protos, strict=True):
        opset = opsets.get(node.domain)
        if opset is None:
            of = node.domain or "ONNX"
            raise ModelError(f"node {node}: the model does not say which opset of {of} it speaks")
        if not node.domain and not onnx.defs.has(node.op_type):
            raise ModelError(f"node {node.name!r}: there is no operator {node.op_type!r} in ONNX")
        if _is_defined_though_deprecated(node, opset):
            continue
        try:
            onnx.checker.check_node(_without_bodies(proto, node.domain), context)
        except onnx.checker.ValidationError as error:
            said = str(error).partition("\n")[0]
            raise ModelError(f"node {node} is not valid at opset {opset}: {said}") from None


def _is_defined_though_deprecated(node: Node, opset: int) -> bool:
    """GroupNormalization of opset 18: models have it, and ONNX, which withdrew it later, defines it."""
    if node.domain or not onnx.defs.has(node.op_type, opset):
        return False
    schema: Any = onnx.defs.get_schema(node.op_type, opset)  # the stubs lack what is asked of it here
    return bool(schema.deprecated and schema.has_context_dependent_function)


def _without_bodies(proto: onnx.NodeProto, domain: str) -> onnx.NodeProto:
    """The node itself, of this domain ("ai.onnx" is another name of ""): bodies are checked on their own."""
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    copy.domain = domain
    for attribute in copy.attribute:
        if attribute.HasField("g"):
            attribute.g.CopyFrom(onnx.GraphProto(name="body"))
    return copy


def check_values(whose: str, nodes: Sequence[Node], given: Collection[str], outputs: Sequence[str]) -> None:
    """ModelError unless every value is `given` or computed once, and before it is read."""
    known = set(given)
    computed: dict[str, Node] = {}
    for n in nodes:
        for v in n.outputs:
            if v in known or v in computed:
                by = f"{n.name!r} and {computed[v].name!r}" if v in computed else f"{n.name!r}, and given"
                raise ModelError(f"{v!r} is computed by {by}: a value has one origin")
            if v:
                computed[v] = n
    for n in nodes:
        for v in n.inputs:
            if v and v not in known:
                later = f"only {computed[v]} does, which is no earlier" if v in computed else "nothing does"
                raise ModelError(f"node {n} reads {v!r}, which nothing before it computes: {later}")
        known.update(v for v in n.outputs if v)
    if not outputs:
        raise ModelError(f"{whose} returns nothing")
    for v in outputs:
        if v not in known:
            raise ModelError(f"{whose} returns {v!r}, which nothing computes")
