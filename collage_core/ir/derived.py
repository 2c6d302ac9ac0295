"""Attributes that ONNX leaves to be worked out, and those that only Relay has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collage_core.ir.occurrence import Occurrence
from collage_core.ir.types import Attribute

__all__ = ["DERIVED", "ONNX_NAMES", "plain_value"]


def plain_value(value: Any) -> Attribute:
    """An attribute as `Node.attributes` holds it: text and tuples rather than bytes and lists."""
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value


_CONVOLUTIONS = ("Conv", "ConvTranspose")
_WINDOWED = (*_CONVOLUTIONS, "MaxPool", "AveragePool", "LpPool")
_IMAGE_OPS = (
    *_WINDOWED,
    "GlobalAveragePool",
    "GlobalMaxPool",
    "BatchNormalization",
    "InstanceNormalization",
    "LRN",
    "Resize",
)
_SPATIAL = {0: "", 1: "W", 2: "HW", 3: "DHW"}


def _spatial_rank(op: Occurrence) -> int:
    type = op.input_type(0)
    return -1 if type is None else len(type.shape) - 2


def _kernel_shape(op: Occurrence) -> Attribute:
    if op.op_type not in _WINDOWED:
        return None
    stated = op.attribute("kernel_shape")
    weights = op.input_type(1) if op.op_type in _CONVOLUTIONS else None
    return stated if stated is not None or weights is None else weights.shape[2:]


def _windowed(onnx_name: str) -> Callable[[Occurrence], Attribute]:
    """Strides or dilations, which are 1 along each spatial dimension where they are not stated."""

    def value(op: Occurrence) -> Attribute:
        if op.op_type not in _WINDOWED:
            return None
        stated = op.attribute(onnx_name)
        return stated if stated is not None else (1,) * max(_spatial_rank(op), 0)

    return value


def _pads(op: Occurrence) -> Attribute:
    rank = _spatial_rank(op)
    if op.op_type not in _WINDOWED or rank < 0:
        return None
    mode = op.attribute("auto_pad", "NOTSET")
    if mode == "NOTSET":
        stated = op.attribute("pads")
        return stated if stated is not None else (0,) * (2 * rank)
    if mode == "VALID":
        return (0,) * (2 * rank)
    kernel = _kernel_shape(op)
    input, output = op.input_type(0), op.output_type()
    if kernel is None or input is None or input.symbolic_dims or output.symbolic_dims:
        return None
    strides, dilations = _windowed("strides")(op), _windowed("dilations")(op)
    transposed = op.op_type == "ConvTranspose"
    wide, narrow = (output, input) if transposed else (input, output)
    extra = op.attribute("output_padding", (0,) * rank) if transposed else (0,) * rank
    total = [
        max(
            (narrow.static_shape[i + 2] - 1) * strides[i]
            + extra[i]
            + (kernel[i] - 1) * dilations[i]
            + 1
            - wide.static_shape[i + 2],
            0,
        )
        for i in range(rank)
    ]
    small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return small + large if mode == "SAME_UPPER" else large + small


def _data_layout(op: Occurrence) -> Attribute:
    rank = _spatial_rank(op)
    return f"NC{_SPATIAL[rank]}" if op.op_type in _IMAGE_OPS and rank in _SPATIAL else None


def _kernel_layout(op: Occurrence) -> Attribute:
    rank = _spatial_rank(op)
    if op.op_type not in _CONVOLUTIONS or rank not in _SPATIAL:
        return None
    return ("OI" if op.op_type == "Conv" else "IO") + _SPATIAL[rank]


def _channels(op: Occurrence) -> Attribute:
    return op.output_type().shape[1] if op.op_type in _CONVOLUTIONS else None


def _units(op: Occurrence) -> Attribute:
    return op.output_type().shape[-1] if op.op_type in ("Gemm", "MatMul") else None


def _constant_input(index: int, *op_types: str) -> Callable[[Occurrence], Attribute]:
    """The values of a constant input, which Relay has as an attribute."""

    def value(op: Occurrence) -> Attribute:
        inputs = op.node.inputs
        if op.op_type not in op_types or index >= len(inputs) or inputs[index] not in op.graph.constants:
            return None
        data = op.graph.constants[inputs[index]]
        return plain_value(data.tolist())

    return value


def _axes(op: Occurrence) -> Attribute:
    stated = op.attribute("axes")
    if stated is not None or not (op.op_type.startswith("Reduce") or op.op_type in ("Squeeze", "Unsqueeze")):
        return stated
    return _constant_input(1, op.op_type)(op)


def _axis(op: Occurrence) -> Attribute:
    """Relay says axis where ONNX says axes."""
    return _axes(op) if op.op_type.startswith("Reduce") or op.op_type in ("Squeeze", "Unsqueeze") else None


ONNX_NAMES = {
    "kernel_size": "kernel_shape",
    "pool_size": "kernel_shape",
    "groups": "group",
    "padding": "pads",
    "dilation": "dilations",
    "transpose_a": "transA",
    "transpose_b": "transB",
}
"""Relay's name -> ONNX's name of the same attribute."""

DERIVED: dict[str, Callable[[Occurrence], Attribute]] = {
    "kernel_shape": _kernel_shape,
    "strides": _windowed("strides"),
    "dilations": _windowed("dilations"),
    "pads": _pads,
    "data_layout": _data_layout,
    "layout": _data_layout,
    "out_layout": _data_layout,
    "kernel_layout": _kernel_layout,
    "channels": _channels,
    "units": _units,
    "out_dtype": lambda op: op.output_type().dtype,
    "dtype": lambda op: op.output_type().dtype if op.op_type == "Cast" else None,
    "axes": _axes,
    "axis": _axis,
    "newshape": _constant_input(1, "Reshape"),
    "a_min": lambda op: (
        op.attribute("min") if "min" in op.node.attributes else _constant_input(1, "Clip")(op)
    ),
    "a_max": lambda op: (
        op.attribute("max") if "max" in op.node.attributes else _constant_input(2, "Clip")(op)
    ),
}
"""Name -> the value worked out; None where the operator has no such attribute or states it itself."""
