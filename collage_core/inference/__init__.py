"""A bundle for a script that was written for `onnxruntime.InferenceSession`."""

from collage_core.inference.binding import IOBinding, NodeArg
from collage_core.inference.session import Session

__all__ = ["IOBinding", "NodeArg", "Session"]
