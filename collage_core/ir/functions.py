"""Functions, put in the place of their calls: a model's own, and those that say what an operator of another
domain computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import onnx
import onnx.inliner
import onnx.parser

from collage_core.errors import ModelError, staying_alive
from collage_core.ir.deduction import tensor_type_of
from collage_core.ir.onnx_check import CHANGED_MEANING, one_line
from collage_core.ir.types import UNKNOWN, TensorType

__all__ = ["Call", "Definition", "with_definitions"]

_LARGE_ELEMENTS = 256
"""Constants from there on are known by type alone where types are inferred: no shape is among them."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node whose operator is defined elsewhere.

    types: for each of its inputs what is known of its type, `UNKNOWN` where that is not even the rank, and
    None where the input is absent. asked: for each of its outputs whether it has a name. attributes: those
    that it states, texts as str. opset: ONNX's, of the model.
    """

    types: tuple[TensorType | None, ...]
    asked: tuple[bool, ...]
    attributes: Mapping[str, Any]
    opset: int

    @property
    def given(self) -> tuple[bool, ...]:
        """For each of its inputs whether it is there."""
        return tuple(type is not None for type in self.types)

    def has(self, place: int) -> bool:
        """Whether that input is there."""
        return place < len(self.types) and self.types[place] is not None

    def asks(self, place: int) -> bool:
        """Whether that output has a name."""
        return place < len(self.asked) and self.asked[place]


@dataclass(frozen=True, slots=True)
class Definition:
    """What an operator that is not ONNX's computes, in operators that are.

    state: for one node the function, in ONNX's text format without its name, as
    "(x, y) => (z) { z = Add (x, y) }". It is given absent inputs for those that the node lacks, and what is
    not asked of its outputs goes nowhere. None where it has no definition, or too little is known: it is
    asked again when other definitions have made more types known.

    ValueError for a domain of ONNX's own.
    """

    domain: str
    op_type: str
    state: Callable[[Call], str | None]

    def __post_init__(self) -> None:
        if self.domain in ("", "ai.onnx"):
            raise ValueError(f"what {self.op_type} computes is for ONNX to say")

    @property
    def name(self) -> str:
        """The operator with its domain."""
        return f"{self.domain}.{self.op_type}"


def with_definitions(
    model: onnx.ModelProto,
    definitions: Sequence[Definition],
    opset: int,
    shapes: Mapping[str, Sequence[int | str]],
) -> onnx.ModelProto:
    """The model without functions, and without the operators that `definitions` knows. opset: ONNX's. shapes:
    of the model's inputs, as far as anybody has given or stated them.

    ModelError where a definition fails, and for functions that cannot be brought to the model's opset.
    """
    # A model's own functions may call what is defined elsewhere.
    model = _inlined(model)
    known = {(d.domain, d.op_type): d for d in definitions}
    if not any((n.domain, n.op_type) in known for n in _nodes(model.graph)):
        return model
    # What a definition needs to know may hang on what another one says: in a network of many layers each on
    # the one before. Weights stay aside meanwhile, known by type.
    light, weights = _without_weights(model)
    for info in light.graph.input:
        if info.name in shapes:
            given = info.type.tensor_type.elem_type, shapes[info.name]
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, *given))
    while (called := _with_functions(light, known, opset)) is not None:
        light = _inlined(called)
    _require_defined(light, known, opset)
    del light.graph.input[len(light.graph.input) - len(weights) :]
    light.graph.initializer.extend(weights)
    return light


def _require_defined(model: onnx.ModelProto, known: Mapping[tuple[str, str], Definition], opset: int) -> None:
    """ModelError for a node that its definition does not cover, though all types are known that it is asked
    with. No backend could be compared with anything.
    """
    left = [n for n in _needed(model.graph) if (n.domain, n.op_type) in known]
    types = _types(model) if left else {}
    for node in left:
        given = {v: types.get(v, UNKNOWN) for v in node.input if v}
        if not any(t == UNKNOWN or t.symbolic_dims for t in given.values()):
            inputs = ", ".join(f"{v} {given[v]}" if v else "none" for v in node.input)
            attributes = ", ".join(str(onnx.helper.printable_attribute(a)) for a in node.attribute)
            what = f"inputs {inputs}; {attributes or 'no attributes'}"
            raise _fault(node, f"does not cover it at opset {opset}: {what}")


def _needed(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes outside of bodies that an output hangs on."""
    wanted = {v.name for v in graph.output}
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            wanted.update(v for n in _nodes_within(node) for v in n.input)
            yield node


def _without_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """The model with its large constants as inputs, behind the others; and these."""
    given = {v.name for v in model.graph.input}
    weights = [t for t in model.graph.initializer if t.name not in given and _is_large(t)]
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    # Of a domain that a model does not name `onnx` infers nothing, not even beside it.
    spoken = {o.domain for o in model.opset_import}
    unspoken = sorted({n.domain for n in _nodes(model.graph)} - {"ai.onnx", *spoken})
    light.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in unspoken)
    light.graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, field).extend(getattr(model.graph, field))
    kept = {t.name for t in weights}
    light.graph.initializer.extend(t for t in model.graph.initializer if t.name not in kept)
    light.graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights)
    return light, weights


def _is_large(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.external_data) or math.prod(tensor.dims) >= _LARGE_ELEMENTS


def _with_functions(
    model: onnx.ModelProto, known: Mapping[tuple[str, str], Definition], opset: int
) -> onnx.ModelProto | None:
    """The model with a function for each of its operators that is defined, None where none is."""
    if not any((n.domain, n.op_type) in known for n in _nodes(model.graph)):
        return None
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    types = _types(model)
    taken = {n.op_type for n in _nodes(whole.graph)}
    functions: dict[str, onnx.FunctionProto] = {}
    for node in _nodes(whole.graph):
        definition = known.get((node.domain, node.op_type))
        if definition is None:
            continue
        for names in (node.input, node.output):  # what is absent at the end may be left out
            while names and not names[-1]:
                names.pop()
        text = _text(definition, node, types, opset)
        if text is None:
            continue
        key = f"{definition.name} {text}"
        if key not in functions:
            name = next(n for i in count(len(functions)) if (n := f"{node.op_type}_{i}") not in taken)
            taken.add(name)
            functions[key] = _function(node, name, text, opset)
        _require_whole(node, functions[key])
        node.op_type = functions[key].name
        node.input.extend([""] * (len(functions[key].input) - len(node.input)))
        node.output.extend([""] * (len(functions[key].output) - len(node.output)))
        del node.attribute[:]
    whole.functions.extend(functions.values())
    return whole if functions else None


def _types(model: onnx.ModelProto) -> Mapping[str, TensorType]:
    """Of tensors outside of bodies, as far as `onnx` knows them. model: without large constants."""
    stated = [
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer
    ]
    found = model.graph
    # onnx raises several unrelated types; what is wrong is told when all is inferred.
    with suppress(Exception):
        found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {v.name: _type(v) for v in (*stated, *found.input, *found.value_info, *found.output)}


def _type(info: onnx.ValueInfoProto) -> TensorType:
    try:
        return tensor_type_of(info.type, info.name)
    except Exception:  # element types that nobody knows raise whatever they meet, and are told later
        return UNKNOWN


def _text(
    definition: Definition, node: onnx.NodeProto, types: Mapping[str, TensorType], opset: int
) -> str | None:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    texts = {k: v.decode(errors="replace") if isinstance(v, bytes) else v for k, v in attributes.items()}
    inputs = tuple(types.get(v, UNKNOWN) if v else None for v in node.input)
    try:
        with staying_alive():
            return definition.state(Call(inputs, tuple(map(bool, node.output)), texts, opset))
    except Exception as error:  # a plugin may raise anything
        raise _fault(node, f"fails: {type(error).__name__}: {one_line(error)}") from None


def _function(node: onnx.NodeProto, name: str, text: str, opset: int) -> onnx.FunctionProto:
    head = f'<domain: "{node.domain}", opset_import: ["" : {opset}]> {name} '
    try:
        function = onnx.parser.parse_function(head + text)
    except Exception as error:  # onnx's parser raises types of its own
        raise _fault(node, f"is no function: {one_line(error)}") from None
    if function.attribute or function.attribute_proto:
        raise _fault(node, "declares attributes: it is asked about each node, and is to state what that has")
    for n in _nodes(function):
        if n.domain not in ("", "ai.onnx") or not onnx.defs.has(n.op_type):
            whose = f"{n.domain}." if n.domain else ""
            raise _fault(node, f"is said in {whose}{n.op_type}, which is not ONNX's")
    return function


def _require_whole(node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
    """ModelError where it does not fit the node, or reads or returns what it does not compute."""
    known = {"", *function.input}
    for n in function.node:
        if missing := [v for v in n.input if v not in known]:
            raise _fault(node, f"reads {missing[0]!r} in {n.op_type}, which nothing in it computes before")
        known.update(n.output)
    asked = [v for v, name in zip(function.output, node.output, strict=False) if name]
    if missing := [v for v in asked if v not in known]:
        raise _fault(node, f"returns {missing[0]!r}, which nothing in it computes")
    for what, there, given in (
        ("inputs", function.input, node.input),
        ("outputs", function.output, node.output),
    ):
        if len(given) > len(there):
            raise _fault(node, f"has {len(there)} {what}, and the node has {len(given)}")


def _fault(node: onnx.NodeProto, what: str) -> ModelError:
    name = node.name or next(iter(node.output), node.op_type)
    return ModelError(f"node {name!r}: the definition of {node.domain}.{node.op_type} {what}")


def _nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Those of its bodies too."""
    for node in graph.node:
        yield node
        yield from _nodes_within(node)


def _nodes_within(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Those of a node's bodies."""
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            yield from _nodes(body)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions. ModelError for one that cannot be brought to the model's opset."""
    if not model.functions:
        return model
    spoken = {o.domain: o.version for o in model.opset_import}.get("", 0)
    for function in model.functions:
        opset = {o.domain: o.version for o in function.opset_import}.get("", spoken)
        for n in function.node:
            if not n.domain and opset < CHANGED_MEANING.get(n.op_type, 0) <= spoken:
                raise ModelError(
                    f"the function {function.name!r} has {n.op_type} of opset {opset}, "
                    f"which cannot be brought to the model's, {spoken}"
                )
    model = _with_defaults(model)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception:  # onnx raises several unrelated types here
        pass  # to convert a function it may need the types of what calls yield
    try:
        typed = onnx.shape_inference.infer_shapes(model)
        return onnx.inliner.inline_local_functions(typed, convert_version=True)
    except Exception as error:
        names = ", ".join(f.name for f in model.functions)
        said = one_line(error).rpartition("failed: ")[2]
        raise ModelError(f"the model's functions cannot be inlined: {said} ({names})") from None


def _with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each function's default attributes stated where it is called without them: `onnx`'s
    inliner leaves these out, and then counts what operators have for theirs.
    """
    defaults = {
        (f.domain, f.name, f.overload): f.attribute_proto for f in model.functions if f.attribute_proto
    }
    if not defaults:
        return model
    whole = onnx.ModelProto()
    whole.CopyFrom(model)

    for part in (whole.graph, *whole.functions):
        for node in _nodes(part):
            given = {a.name for a in node.attribute}
            stated = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(a for a in stated if a.name not in given)
    return whole
