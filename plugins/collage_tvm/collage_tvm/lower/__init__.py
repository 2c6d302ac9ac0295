"""ONNX operators as index expressions, one function per operator. Imports TVM: only `build` may get here."""

from collage_tvm.lower import elementwise, indexed, injective, pooling, reduction, resize, scan
from collage_tvm.lower.context import LOWERINGS, LoweringContext

__all__ = [
    "LOWERINGS",
    "LoweringContext",
    "elementwise",
    "indexed",
    "injective",
    "pooling",
    "reduction",
    "resize",
    "scan",
]
