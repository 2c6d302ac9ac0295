"""What a function has in it once it is scheduled: its weights, its blocks, and what they copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import Schedule as TvmSchedule

__all__ = ["REPACKING", "blocks_of", "copied_weight", "statements", "weights_of"]

REPACKING = "meta_schedule.layout_rewrite_preproc"
"""Annotation of a block that stores a weight in another order, before everything else."""


def weights_of(schedule: TvmSchedule) -> list[Any]:
    """The buffers of the function's parameters that may be stored in another order."""
    function = schedule.mod["main"]
    places = function.attrs.get("layout_free_buffers", []) if function.attrs else []
    return [function.params[int(k)] for k in places]


def blocks_of(schedule: TvmSchedule) -> list[Any]:
    """All blocks of the function, each before those in it."""
    return statements(schedule.mod["main"].body, SBlock)


def statements(statement: Any, kind: Any) -> list[Any]:
    """The statements of this kind within one, itself included."""
    found: list[Any] = []
    tvm_ffi.structural_walk(statement, (kind, found.append), order="pre")
    return found


def copied_weight(block: Any, weights: Sequence[Any]) -> int | None:
    """The number, from 1, of the weight that a block copies as it lies, element by element; None if it does
    anything else.
    """
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.expr.TensorLoad):
        return None
    source = store.value
    variables = [v.var for v in block.iter_vars]
    if len(source.indices) != len(variables) or block.init is not None:
        return None
    if not all(i.same_as(v) for i, v in zip(source.indices, variables, strict=True)):
        return None
    return next((k for k, weight in enumerate(weights, 1) if source.source.same_as(weight)), None)
