"""Attributes of operators under ONNX's names and under those of TVM's Relay, with the defaults of ONNX's
schemas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx

from collage_core.ir import Attribute, Operator

__all__ = ["Attributes", "matches_attribute", "schema_of"]


@cache
def _schema(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def schema_of(op: Operator) -> onnx.defs.OpSchema | None:
    """The schema that the graph's opset gives the operator; None where ONNX has none (other domains)."""
    version = op.graph.opsets.get(op.node.domain)
    return None if version is None else _schema(op.node.op_type, version, op.node.domain)


class Attributes(Mapping[str, Attribute]):
    """Attributes of one operator: `attributes["strides"]`, `attributes.strides`, `attributes.get("groups",
    1)`.

    Answers to ONNX's names (strides, kernel_shape, group, pads, dilations), defaults included, and to Relay's
    (kernel_size, groups, padding, dilation, data_layout, kernel_layout, channels, units, out_dtype, axis,
    pool_size). Layouts are the logical order that ONNX fixes: NCW, NCHW, NCDHW; OIW, OIHW, OIDHW. `pads` are
    those in effect, whatever `auto_pad` says. Iteration yields ONNX's names only.
    """

    def __init__(self, op: Operator) -> None:
        self._op = op

    def __getitem__(self, name: str) -> Attribute:
        name = _ONNX_NAMES.get(name, name)
        if name in _DERIVED and (value := _DERIVED[name](self._op)) is not None:
            return value
        if name in self._op.node.attributes:
            return self._op.node.attributes[name]
        schema = schema_of(self._op)
        if schema is not None and name in schema.attributes:
            default = schema.attributes[name].default_value
            if default.type != onnx.AttributeProto.UNDEFINED:
                return _plain(onnx.helper.get_attribute_value(default))
        raise KeyError(name)

    def __getattr__(self, name: str) -> Attribute:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{self._op} has no attribute {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys(self._op.node.attributes)
        schema = schema_of(self._op)
        if schema is not None:
            names |= dict.fromkeys(n for n in sorted(schema.attributes) if n in self)
        return iter(names)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True


def matches_attribute(name: str, expected: Attribute, actual: Attribute) -> bool:
    """Whether an operator's attribute is the expected one: one number stands for as many as there are
    (strides of 2), one side's padding for both sides', and floats compare in the single precision that ONNX
    stores."""
    if isinstance(actual, np.ndarray):
        return np.array_equal(actual, np.asarray(expected))
    if isinstance(actual, tuple):
        wanted: tuple[Any, ...] = expected if isinstance(expected, tuple) else (expected,) * len(actual)
        if name in ("pads", "padding") and 2 * len(wanted) == len(actual):
            wanted = wanted * 2
        return len(wanted) == len(actual) and all(
            matches_attribute(name, e, a) for e, a in zip(wanted, actual, strict=True)
        )
    if isinstance(actual, float) and isinstance(expected, int | float):
        return math.isclose(actual, expected, rel_tol=1e-6)
    return bool(expected == actual)


def _plain(value: Any) -> Attribute:
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


def _spatial_rank(op: Operator) -> int:
    type = op.input_type(0)
    return -1 if type is None else len(type.shape) - 2


def _kernel_shape(op: Operator) -> Attribute:
    if op.op_type not in _WINDOWED:
        return None
    stated = op.attribute("kernel_shape")
    weights = op.input_type(1) if op.op_type in _CONVOLUTIONS else None
    return stated if stated is not None or weights is None else weights.shape[2:]


def _windowed(onnx_name: str) -> Callable[[Operator], Attribute]:
    """Strides or dilations, which are 1 along each spatial dimension where they are not stated."""

    def value(op: Operator) -> Attribute:
        if op.op_type not in _WINDOWED:
            return None
        stated = op.attribute(onnx_name)
        return stated if stated is not None else (1,) * max(_spatial_rank(op), 0)

    return value


def _pads(op: Operator) -> Attribute:
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


def _data_layout(op: Operator) -> Attribute:
    rank = _spatial_rank(op)
    return f"NC{_SPATIAL[rank]}" if op.op_type in _IMAGE_OPS and rank in _SPATIAL else None


def _kernel_layout(op: Operator) -> Attribute:
    rank = _spatial_rank(op)
    if op.op_type not in _CONVOLUTIONS or rank not in _SPATIAL:
        return None
    return ("OI" if op.op_type == "Conv" else "IO") + _SPATIAL[rank]


def _channels(op: Operator) -> Attribute:
    return op.output_type().shape[1] if op.op_type in _CONVOLUTIONS else None


def _units(op: Operator) -> Attribute:
    return op.output_type().shape[-1] if op.op_type in ("Gemm", "MatMul") else None


def _constant_input(index: int, *op_types: str) -> Callable[[Operator], Attribute]:
    """The values of a constant input, which Relay has as an attribute."""

    def value(op: Operator) -> Attribute:
        inputs = op.node.inputs
        if op.op_type not in op_types or index >= len(inputs) or inputs[index] not in op.graph.constants:
            return None
        data = op.graph.constants[inputs[index]]
        return _plain(data.tolist())

    return value


def _axes(op: Operator) -> Attribute:
    stated = op.attribute("axes")
    if stated is not None or not (op.op_type.startswith("Reduce") or op.op_type in ("Squeeze", "Unsqueeze")):
        return stated
    return _constant_input(1, op.op_type)(op)


def _axis(op: Operator) -> Attribute:
    """Relay says axis where ONNX says axes."""
    return _axes(op) if op.op_type.startswith("Reduce") or op.op_type in ("Squeeze", "Unsqueeze") else None


_ONNX_NAMES = {
    "kernel_size": "kernel_shape",
    "pool_size": "kernel_shape",
    "groups": "group",
    "padding": "pads",
    "dilation": "dilations",
    "transpose_a": "transA",
    "transpose_b": "transB",
}

_DERIVED: dict[str, Callable[[Operator], Attribute]] = {
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
