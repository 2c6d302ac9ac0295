"""Which plan was taken, for the next process that builds the same kernel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from collage_cudnn.description import Description

__all__ = ["Keeper", "Kept", "signature"]


class Kept(Protocol):
    """`collage_cuda.choices.Choices` for this version of the library."""

    def known(self, kernel: str) -> bytes | None: ...

    def keep(self, kernel: str, choice: bytes) -> None: ...

    def forget(self, kernel: str) -> None: ...


def signature(ways: Sequence[Description]) -> str:
    """All that plans depend on: everything but the elements of constants."""
    return "\n".join(f"{replace(way, constants={})} {sorted(way.constants)}" for way in ways)


class Keeper:
    """Of one kernel."""

    def __init__(self, kept: Kept, ways: Sequence[Description]) -> None:
        self._kept, self._signature = kept, signature(ways)

    def known(self) -> tuple[int, str] | None:
        """Which way, and the name of its plan; None if none was taken yet."""
        text = self._kept.known(self._signature)
        if text is None:
            return None
        way, name = json.loads(text)
        return int(way), str(name)

    def keep(self, way: int, plan_name: str) -> None:
        self._kept.keep(self._signature, json.dumps([way, plan_name]).encode())

    def forget(self) -> None:
        """There is no such plan any more."""
        self._kept.forget(self._signature)
