"""A group in one variant, done by NumPy as cuDNN is asked to, against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx
from collage_cudnn.description import Call, Description
from cudnn_emulator import emulate

from collage_core.backend import Variant
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph
from collage_core.reference import evaluate
from collage_core.target import Target

__all__ = ["ROUNDING", "TARGET", "RunGroup", "check", "each", "in_memory"]

TARGET = Target("cpu", 2, accelerators=("cuda",))
ROUNDING = Target("cpu", 2, ("bfloat16", "float16"), ("cuda",))
_TOLERANCE = {"float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}
"""NumPy reckons in float64; constants are rounded as cuDNN gets them."""


class RunGroup(Protocol):
    def __call__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
    ) -> dict[Variant, tuple[Call | Description, ...]]: ...


def check(group: Subgraph, variant: Variant, asked: Call | Description, inputs: Mapping[str, Array]) -> None:
    """Everything lies in memory as the variant's formats say."""
    values = evaluate(group.graph, inputs, keep=(*group.inputs, *group.outputs))
    given = [in_memory(values[v], f) for v, f in zip(group.inputs, variant.inputs, strict=True)]
    (name,), (format,) = group.outputs, variant.outputs
    expected = in_memory(values[name], format)
    found = emulate(asked, given)
    allowed = _TOLERANCE[format.dtype] * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=allowed, err_msg=str(variant))


def in_memory(value: Array, format: Format) -> Array:
    """Its elements one after the other, in double precision."""
    return value.transpose(format.layout).reshape(-1).astype(np.float64)


def each(planned: Mapping[Variant, Sequence[Call | Description]]) -> list[Call | Description]:
    """All ways to ask, of all variants."""
    return [asked for ways in planned.values() for asked in ways]
