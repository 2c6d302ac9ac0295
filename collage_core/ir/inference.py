"""ONNX's shape inference, with what the operators' texts say where it departs from them (onnx 1.23).

Pools with `ceil_mode` before opset 22 keep a window that begins beyond the input, and with `auto_pad` one
beyond the formula; ConvTranspose gets wrong sizes from `output_shape` and from `SAME` with
`output_padding`; STFT takes `onesided` for 0 where it is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage_core.errors import ModelError
from collage_core.operators.windows import TransposedWindows, Windows

__all__ = ["inferred", "is_doubtful"]

Shapes = Mapping[str, Sequence[int]]


def inferred(model: onnx.ModelProto, *, strict: bool) -> onnx.ModelProto:
    """A copy of `model` with the types of its values. `model` may be changed: it is only fit for this."""
    doubtful = _doubtful(model)
    while doubtful:
        found = _infer(model, strict=False)
        shapes = _static_shapes(found)
        for place in doubtful:
            node = model.graph.node[place]
            try:
                right = _mended(found, node, shapes)
            except (ArithmeticError, LookupError, ValueError) as error:
                what = f"node {node.name!r} ({node.op_type})"
                raise ModelError(f"{what}: its attributes do not fit its input: {error}") from None
            if right is not None:
                _stand_in(model, place, right, found)
                doubtful.remove(place)
                break
        else:
            break
    return _infer(model, strict=strict)


def _infer(model: onnx.ModelProto, *, strict: bool) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=strict, data_prop=True)


def _doubtful(model: onnx.ModelProto) -> list[int]:
    """Places of the nodes whose types are to be looked at."""
    places = []
    for place, node in enumerate(model.graph.node):
        if node.domain:
            continue
        stated = _attributes(node)
        if node.op_type == "STFT" and "onesided" not in stated:
            node.attribute.append(helper.make_attribute("onesided", 1))
        if node.op_type != "STFT" and is_doubtful(node.op_type, stated):
            places.append(place)
    return places


def is_doubtful(op_type: str, stated: Mapping[str, Any]) -> bool:
    """Whether `onnx` may infer another shape than the operator's text says, by the attributes stated."""
    if op_type == "STFT":
        return "onesided" not in stated
    pool = op_type in ("AveragePool", "LpPool", "MaxPool") and stated.get("ceil_mode")
    same = stated.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER", "SAME_UPPER", "SAME_LOWER")
    return bool(pool) or (op_type == "ConvTranspose" and (same or "output_shape" in stated))


def _mended(found: onnx.ModelProto, node: onnx.NodeProto, shapes: Shapes) -> list[int] | None:
    """The shape of a doubtful node's output where `onnx` has another; None where it is right or open."""
    needed = node.input[: 1 if node.op_type != "ConvTranspose" else 2]
    if any(v not in shapes for v in needed):
        return None
    x, *weights = (list(shapes[v]) for v in needed)
    stated = _attributes(node)
    auto_pad = stated.pop("auto_pad", b"").decode()
    if weights:
        transposed = TransposedWindows(auto_pad=auto_pad, **_known(stated, _TRANSPOSED))
        _, sizes, _ = transposed.extent(x[2:], weights[0][2:])
        right = [x[0], weights[0][1] * stated.get("group", 1), *sizes]
    else:
        windows = Windows.of(
            x[2:], stated["kernel_shape"], auto_pad=auto_pad, ceil_mode=True, **_known(stated, _POOLED)
        )
        right = [*x[:2], *windows.output]
    return None if list(shapes.get(node.output[0], ())) == right else right


_POOLED = ("dilations", "pads", "strides")
_TRANSPOSED = (*_POOLED, "output_padding", "output_shape")


def _known(stated: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {k: v for k, v in stated.items() if k in names}


def _stand_in(model: onnx.ModelProto, place: int, shape: list[int], found: onnx.ModelProto) -> None:
    """Nodes without work that have the outputs, of this shape, of the node at `place`."""
    dtypes = {v.name: v.type.tensor_type.elem_type for v in (*found.graph.value_info, *found.graph.output)}
    outputs = [v for v in model.graph.node[place].output if v]
    name = f"{outputs[0]}.shape"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(shape, np.int64), name))
    nodes = []
    for v in outputs:
        zero = helper.make_tensor("zero", dtypes[v], [1], [0])
        nodes.append(helper.make_node("ConstantOfShape", [name], [v], value=zero))
    rest = list(model.graph.node)
    del model.graph.node[:]
    # The first takes the node's place, so that the others' stay what they are.
    model.graph.node.extend([*rest[:place], nodes[0], *rest[place + 1 :]])
    model.graph.node.extend(nodes[1:])


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _static_shapes(model: onnx.ModelProto) -> dict[str, Sequence[int]]:
    shapes: dict[str, Sequence[int]] = {t.name: t.dims for t in model.graph.initializer}
    for v in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        tensor = v.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[v.name] = [d.dim_value for d in tensor.shape.dim]
    return shapes
