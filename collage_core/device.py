"""Targets: the device a placement is made for, and with how many threads."""

from __future__ import annotations

import os
from dataclasses import dataclass

from collage_core.errors import CollageError

__all__ = ["Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """What every backend is told to run on: device ("cpu") and one number of threads for all libraries."""

    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.device != "cpu":
            raise CollageError(f"device {self.device!r} is not supported; this version places on 'cpu'")
        if self.threads < 1:
            raise CollageError(f"threads must be at least 1, not {self.threads}")

    @classmethod
    def default(cls) -> Target:
        """The CPU with as many threads as this process may use."""
        return cls("cpu", len(os.sched_getaffinity(0)))

    def __str__(self) -> str:
        return f"{self.device} x{self.threads}"
