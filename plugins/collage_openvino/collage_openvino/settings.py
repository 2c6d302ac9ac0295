"""How models are compiled: exact fp32, one request at a time, the target's threads."""

from __future__ import annotations

from collage_core.device import Target

__all__ = ["properties"]


def properties(target: Target) -> dict[str, str]:
    """The library's properties, by its own names."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(target.threads),
        "ENABLE_CPU_PINNING": "NO",
        # The processor's bf16 units would be used otherwise
        "INFERENCE_PRECISION_HINT": "f32",
    }
