"""How models are compiled: exact fp32, one request at a time, the target's threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from collage_run.processor import processor

__all__ = ["NOTHING_ELSE", "THROUGHPUT", "properties"]

NOTHING_ELSE: Mapping[str, str | None] = MappingProxyType({})
THROUGHPUT: Mapping[str, str | None] = MappingProxyType(
    {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": None, "EXCLUSIVE_ASYNC_REQUESTS": "NO"}
)
"""In place of those for one request at a time: how many streams there are is left to the library."""


def properties(
    threads: int, settings: Mapping[str, str | None] = NOTHING_ELSE, *, is_rounded: bool = False
) -> dict[str, str]:
    """The library's properties, by its own names, for models on so many threads. settings: others in place of
    these, None for one that is left to the library. is_rounded: whether all is computed in bfloat16.

    Every model would have an arena of its own, to which the library's threads have to move from the model
    before it: some 40 us. All models can share one instead, with as many threads as this process may use,
    whatever the other properties say.
    """
    shared = threads >= len(os.sched_getaffinity(0))
    chosen = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "ENABLE_CPU_PINNING": "NO",
        # The processor's bf16 units would be used otherwise
        "INFERENCE_PRECISION_HINT": "bf16" if is_rounded else "f32",
        # What is multiplied with quantized constants would be quantized as well, in groups of as many numbers
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "KV_CACHE_PRECISION": "f32",
        "EXCLUSIVE_ASYNC_REQUESTS": "YES" if shared else "NO",
        # Products of eight bits would be summed in 16, and saturate: they are computed in float32 then
        **({} if processor().multiplies_int8 else {"LP_TRANSFORMS_MODE": "NO"}),
    }
    return {name: value for name, value in {**chosen, **settings}.items() if value is not None}
