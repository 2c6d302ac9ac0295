"""Targets: the device a placement is made for, and with how many threads. The processor that is here."""

from __future__ import annotations

import os
from dataclasses import dataclass

from collage_run.processor import Processor, cpuinfo, processor

from collage_core.errors import CollageError
from collage_core.formats import BFLOAT16, CPU, FLOATS, Format

__all__ = ["MOST_THREADS", "PRECISIONS", "Processor", "Target", "cpuinfo", "processor"]

MOST_THREADS = 1024
"""No machine has many more, and libraries start as many as they are told."""


PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
"""What people call float types."""


@dataclass(frozen=True, slots=True)
class Target:
    """What every backend is told to run on: the host's processor, with one number of threads for all
    libraries, and which devices may take part beside it.

    precisions: float types in which values of other float types may be stored, rounded. Without any, each
    value is stored in the model's own type. accelerators: names of further devices.
    """

    device: str = CPU
    threads: int = 1
    precisions: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.device != CPU:
            raise CollageError(
                f"device {self.device!r} is not supported; the host is {CPU!r}, others are accelerators"
            )
        if type(self.threads) is not int or not 1 <= self.threads <= MOST_THREADS:
            raise CollageError(f"threads must be 1 to {MOST_THREADS}, not {self.threads!r}")
        if not isinstance(self.precisions, tuple | list | set | frozenset):
            raise CollageError(f"precisions is a tuple of float types, not {self.precisions!r}")
        for dtype in self.precisions:
            if dtype not in FLOATS:
                raise CollageError(
                    f"{dtype!r} is no precision to store floats in; known: {', '.join(FLOATS)}"
                )
        # Targets that allow the same are one: in placements, and as keys.
        object.__setattr__(self, "precisions", tuple(sorted(set(self.precisions))))
        if not isinstance(self.accelerators, tuple | list | set | frozenset) or not all(
            isinstance(name, str) for name in self.accelerators
        ):
            raise CollageError(f"accelerators is a tuple of devices' names, not {self.accelerators!r}")
        names = {name.lower() for name in self.accelerators} - {self.device}
        object.__setattr__(self, "accelerators", tuple(sorted(names)))

    @classmethod
    def default(cls) -> Target:
        """The CPU with as many threads as this process may use."""
        return cls(CPU, min(len(os.sched_getaffinity(0)), MOST_THREADS))

    def __str__(self) -> str:
        beside = [f"+ {name}" for name in self.accelerators]
        return " ".join([f"{self.device} x{self.threads}", *self.precisions, *beside])

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether values may be stored in it, and the processor has instructions for their products."""
        return BFLOAT16 in self.precisions and processor().multiplies_bfloat16

    @property
    def devices(self) -> tuple[str, ...]:
        """All that may take part, the host first."""
        return (self.device, *self.accelerators)

    def stores(self, dtype: str, rank: int, format: Format) -> bool:
        """Whether a value of that type and number of dimensions may be stored in `format`."""
        is_allowed = format.dtype == dtype or format.dtype in self.precisions
        return is_allowed and format.device in self.devices and format.can_store(dtype, rank)
