"""What ONNX Runtime's own operators compute, in ONNX's.

Inputs and attributes: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from collage_core.ir import Call, Definition
from collage_onnxruntime.definitions import attention, fused, grouped, quantised, rotary, transformers
from collage_onnxruntime.definitions.attributes import ATTRIBUTES
from collage_onnxruntime.definitions.text import State

__all__ = ["definitions"]

_DOMAIN = "com.microsoft"


def definitions() -> Sequence[Definition]:
    """Of what its tools write: into quantised models, and where they join operators of a transformer's."""
    modules = attention, fused, grouped, quantised, rotary, transformers
    return [
        Definition(_DOMAIN, name, partial(_stated, name, state))
        for m in modules
        for name, state in m.STATED.items()
    ]


def _stated(name: str, state: State, call: Call) -> str | None:
    known = ATTRIBUTES.get(name)
    return None if known is not None and call.attributes.keys() - known else state(call)
