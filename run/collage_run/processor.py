"""The processor that is here."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Processor", "cpuinfo", "processor", "runs_code_of"]

_VECTOR_INSTRUCTIONS = re.compile(
    r"(s?sse\d?|sse4_[12]|avx\w*|fma|f16c|amx_\w+|asimd\w*|sve\w*|sme\d\w*|i8mm|bf16)$"
)
"""Without what one vendor alone once had (sse4a, fma4), which no library of today needs, and without flags
that only look alike (smep, and x86's sme, which is memory encryption).
"""

_PRODUCTS_OF_BFLOAT16 = frozenset(["amx_bf16", "avx512_bf16", "bf16"])
_PRODUCTS_OF_INT8 = frozenset(["amx_int8", "avx512_vnni", "avx_vnni", "i8mm"])


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor's model, and the vector instructions that it has, as the system calls them, sorted."""

    model: str
    instructions: tuple[str, ...]

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether it has instructions for that; without them it is emulated, and slower than float32."""
        return not _PRODUCTS_OF_BFLOAT16.isdisjoint(self.instructions)

    @property
    def multiplies_int8(self) -> bool:
        """Whether it has instructions that sum products of eight bits in 32: those of older processors
        saturate at 16.
        """
        return not _PRODUCTS_OF_INT8.isdisjoint(self.instructions)


@cache
def processor() -> Processor:
    """The processor of this machine."""
    facts = cpuinfo()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    model = facts.get("model name") or platform.processor() or platform.machine()
    return Processor(model, tuple(sorted(f for f in flags if _VECTOR_INSTRUCTIONS.match(f))))


def cpuinfo(file: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; {} where there is none."""
    try:
        text = file.read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


@cache
def runs_code_of() -> str:
    """Which processors run the machine code that is made here: this one, and all others that are told from it
    by nothing that such code can use.
    """
    facts = cpuinfo()
    told = ("model name", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features", "isa")
    return ", ".join([platform.machine(), *(facts.get(name, "") for name in told)])
