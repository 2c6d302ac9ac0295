"""Edits of the model inside a bundle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import onnx
from odd_values import INTEGERS, TEXTS

__all__ = ["change_message", "change_model"]

_OPERATORS = [
    "Relu",
    "MatMul",
    "Conv",
    "Gemm",
    "Softmax",
    "Add",
    "Reshape",
    "Loop",
    "Resize",
    "MaxPool",
    "Gather",
    "Pad",
    "Einsum",
    "TopK",
    "NoSuchThing",
]


def change_message(model: Any, chance: random.Random) -> None:
    """One field somewhere inside becomes another value, or one of several is doubled, swapped or removed."""
    places: list[tuple[Any, Any]] = []

    def walk(message: Any) -> None:
        for field, value in message.ListFields():
            places.append((message, field))
            if field.type == field.TYPE_MESSAGE:
                for inner in value if field.label == field.LABEL_REPEATED else [value]:
                    walk(inner)

    walk(model)
    message, field = chance.choice(places)
    value = getattr(message, field.name)
    if field.label == field.LABEL_REPEATED:
        at = chance.randrange(len(value))
        if field.type == field.TYPE_MESSAGE or chance.random() < 0.3:
            if chance.random() < 0.5:
                del value[at]
            elif field.type == field.TYPE_MESSAGE:
                value.add().CopyFrom(value[at])
            else:
                value.append(value[at])
        else:
            value[at] = _scalar(value[at], chance)
    elif field.type != field.TYPE_MESSAGE:
        try:
            setattr(message, field.name, _scalar(value, chance))
        except ValueError:  # out of its field's range
            message.ClearField(field.name)
    else:
        message.ClearField(field.name)


def _scalar(now: Any, chance: random.Random) -> Any:
    if isinstance(now, bytes):
        return chance.choice([b"", now[:-1], now + b"\0" * 8, now * 2, b"\xff" * len(now)])
    if isinstance(now, str):
        return chance.choice(TEXTS)
    if isinstance(now, float):
        return chance.choice([0.0, -1.0, 1e38, float("inf"), float("nan")])
    fitting = [i for i in (*INTEGERS, now + 1, now - 1) if -(2**31) <= i < 2**31 or abs(now) >= 2**31]
    return chance.choice(fitting + ([2**40, 2**62] if chance.random() < 0.3 else [5]))


def change_model(model: onnx.ModelProto, chance: random.Random) -> None:
    """An edit of a node, a type, a weight or where it lies, which leaves a model."""
    graph = model.graph
    if not graph.node or not graph.input or not graph.output:
        return
    node, other = chance.choice(graph.node), chance.choice(graph.node)
    outside = [t for t in graph.initializer if t.external_data]
    shaped = [v for v in (*graph.input, *graph.output, *graph.value_info) if v.type.tensor_type.shape.dim]
    size = chance.choice(INTEGERS)

    def entry() -> None:
        if outside:
            data = chance.choice(chance.choice(outside).external_data)
            numbers = [str(i) for i in (*INTEGERS, 1, 2, 3, 5, 63)]
            data.value = chance.choice(TEXTS if data.key == "location" else [*numbers, *TEXTS])

    def dims() -> None:
        tensor = chance.choice(graph.initializer)
        if tensor.dims:
            tensor.dims[chance.randrange(len(tensor.dims))] = size

    def shape() -> None:
        if shaped:
            chance.choice(chance.choice(shaped).type.tensor_type.shape.dim).dim_value = size

    def all_shapes() -> None:
        for value in shaped:
            for dim in value.type.tensor_type.shape.dim:
                dim.dim_value = max(1, abs(size) % 2**20) if dim.dim_value > 1 else 1

    def rewire() -> None:
        if node.input and other.output:
            node.input[chance.randrange(len(node.input))] = other.output[0]

    def attribute() -> None:
        name = chance.choice(
            ["pads", "strides", "dilations", "kernel_shape", "group", "axis", "perm", "alpha"]
        )
        ints = [chance.choice(INTEGERS) for _ in range(chance.choice([1, 2, 4]))]
        node.attribute.append(onnx.helper.make_attribute(name, ints if len(ints) > 1 else ints[0]))

    def ids() -> None:
        for entry in node.metadata_props:
            entry.value = str(size)

    edits: list[Callable[[], object]] = [
        entry,
        entry,
        dims,
        shape,
        all_shapes,
        rewire,
        attribute,
        lambda: setattr(node, "op_type", chance.choice(_OPERATORS)),
        lambda: setattr(chance.choice(graph.initializer), "data_type", chance.randrange(30)),
        ids,
        lambda: setattr(chance.choice(graph.input).type.tensor_type, "elem_type", chance.randrange(30)),
        lambda: setattr(model.opset_import[0], "version", chance.choice([0, 1, 7, 13, 18, 21, 2**40])),
    ]
    chance.choice(edits)()
