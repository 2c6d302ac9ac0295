"""Attributes of operators under ONNX's and Relay's names, with the defaults of ONNX's schemas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx

from collage_core.ir.derived import DERIVED, ONNX_NAMES, plain_value
from collage_core.ir.occurrence import Occurrence
from collage_core.ir.types import Attribute

__all__ = ["Attributes", "matches_attribute", "schema_of"]


@cache
def _schema(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def schema_of(op: Occurrence) -> onnx.defs.OpSchema | None:
    """The schema that the graph's opset gives the operator; None where ONNX has none (other domains)."""
    version = op.graph.opsets.get(op.node.domain)
    return None if version is None else _schema(op.node.op_type, version, op.node.domain)


class Attributes(Mapping[str, Attribute]):
    """Attributes of one operator: `attributes["strides"]`, `attributes.strides`, `attributes.get("group")`.

    Answers to ONNX's names (strides, kernel_shape, group, pads, dilations), defaults included, and to Relay's
    (kernel_size, groups, padding, dilation, data_layout, kernel_layout, channels, units, out_dtype, axis,
    pool_size). Layouts are the logical order that ONNX fixes: NCW, NCHW, NCDHW; OIW, OIHW, OIDHW. `pads` are
    those in effect, whatever `auto_pad` says. Iteration yields ONNX's names only.
    """

    def __init__(self, op: Occurrence) -> None:
        self._op = op

    def __getitem__(self, name: str) -> Attribute:
        name = ONNX_NAMES.get(name, name)
        if name in DERIVED and (value := DERIVED[name](self._op)) is not None:
            return value
        if name in self._op.node.attributes:
            return self._op.node.attributes[name]
        schema = schema_of(self._op)
        if schema is not None and name in schema.attributes:
            default = schema.attributes[name].default_value
            if default.type != onnx.AttributeProto.UNDEFINED:
                return plain_value(onnx.helper.get_attribute_value(default))
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
    """Whether an operator's attribute is the expected one.

    One number stands for as many as there are (strides of 2), one side's padding for both sides', and floats
    compare in the single precision that ONNX stores.
    """
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
