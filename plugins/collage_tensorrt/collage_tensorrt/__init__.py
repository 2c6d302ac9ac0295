"""NVIDIA TensorRT, and TensorRT for RTX, as a backend of Collage."""

from __future__ import annotations

__all__ = ["NAME", "__version__"]

__version__ = "0.1.0"
NAME = "tensorrt"
"""Of the backend."""
