"""Sequences, which are lists of arrays, and optionals: what they hold, or `[None]` without an element."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = [
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceErase",
    "SequenceInsert",
]


class Optional(OpRun):
    def _run(self, held: Any = None, type: Any = None) -> tuple[Any]:
        return ([None] if held is None else held,)


class OptionalGetElement(OpRun):
    def _run(self, optional: Any) -> tuple[Any]:
        if not _holds(optional):
            raise ValueError("the optional holds nothing")
        return (optional,)


class OptionalHasElement(OpRun):
    def _run(self, optional: Any = None) -> tuple[Tensor]:
        return (np.array(_holds(optional)),)


class SequenceAt(OpRun):
    def _run(self, sequence: list[Tensor], position: Tensor) -> tuple[Tensor]:
        return (sequence[int(position.item())],)


class SequenceErase(OpRun):
    def _run(self, sequence: list[Tensor], position: Tensor | None = None) -> tuple[list[Tensor]]:
        rest = list(sequence)
        del rest[-1 if position is None else int(position.item())]
        return (rest,)


class SequenceInsert(OpRun):
    def _run(
        self, sequence: list[Tensor], tensor: Tensor, position: Tensor | None = None
    ) -> tuple[list[Tensor]]:
        longer = list(sequence)
        at = len(longer) if position is None else int(position.item())
        longer.insert(at, tensor)
        return (longer,)


def _holds(optional: Any) -> bool:
    return optional is not None and not (
        isinstance(optional, list) and len(optional) == 1 and optional[0] is None
    )
