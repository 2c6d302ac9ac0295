"""ONNX operators as index expressions, one function per operator. Imports TVM: only `build` may get here."""

from collage_tvm.lower import (
    convolution,
    elementwise,
    indexed,
    injective,
    pooling,
    product,
    reduction,
    resize,
    scan,
)
from collage_tvm.lower.context import LOWERINGS, LoweringContext

__all__ = [
    "LOWERINGS",
    "LoweringContext",
    "convolution",
    "elementwise",
    "indexed",
    "injective",
    "pooling",
    "product",
    "reduction",
    "resize",
    "scan",
]
