"""Collage as any other ONNX backend: prepare a model, run it. Nothing is measured.

For the fastest mix use `collage_core.optimize`; this interface is for what drives ONNX backends, ONNX's own
tests first of all.
"""

from collage_core.onnx_backend.backend import OnnxBackend
from collage_core.onnx_backend.prepared import PreparedModel

__all__ = [
    "OnnxBackend",
    "PreparedModel",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

prepare = OnnxBackend.prepare
"""`OnnxBackend.prepare` of all available backends."""

run_model = OnnxBackend.run_model
"""`OnnxBackend.run_model` of all available backends."""

run_node = OnnxBackend.run_node
"""`OnnxBackend.run_node` of all available backends."""

supports_device = OnnxBackend.supports_device
"""`OnnxBackend.supports_device`."""

is_compatible = OnnxBackend.is_compatible
"""`OnnxBackend.is_compatible` of all available backends."""
