"""What ONNX Runtime's own operators compute, in ONNX's.

Inputs and attributes: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.ir import Definition
from collage_onnxruntime.definitions import attention, fused, grouped, quantised, rotary, transformers

__all__ = ["definitions"]

_DOMAIN = "com.microsoft"


def definitions() -> Sequence[Definition]:
    """Of what its tools write: into quantised models, and where they join operators of a transformer's."""
    modules = attention, fused, grouped, quantised, rotary, transformers
    return [Definition(_DOMAIN, name, state) for m in modules for name, state in m.STATED.items()]
