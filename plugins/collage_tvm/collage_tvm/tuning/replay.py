"""A tuned schedule done again, instruction by instruction.

A schedule is a program for TVM, and may come from a bundle that a stranger wrote. So TVM is never handed its
text: what is not one of the instructions that our own tuner writes, with arguments of the kinds and sizes
that it gives them, is refused here.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule as TvmSchedule

from collage_core.errors import BackendError
from collage_tvm.tuning.instructions import INSTRUCTIONS, MOST_LANES, MOST_VALUES, Replay, refused
from collage_tvm.tuning.scheduled import REPACKING, blocks_of, copied_weight, statements, weights_of

__all__ = ["replay"]

_MOST_INSTRUCTIONS = 512
_ALLOCATION_RATIO = 64
"""How many times as much as its parameters take the function may allocate for what is in between."""


def replay(trace: Any, schedule: TvmSchedule) -> None:
    """Do to `schedule` what `trace` (MetaSchedule's JSON) tells. BackendError, in one line, for what is not
    allowed or cannot be done.
    """
    instructions, decisions = _parts(trace)
    replaying = Replay(schedule)
    for number, instruction in enumerate(instructions):
        name, inputs, attributes, outputs = instruction
        do = INSTRUCTIONS.get(name)
        if do is None:
            raise refused(f"the instruction {name!r}")
        try:
            results = do(replaying, inputs, attributes, decisions.get(number))
        except BackendError:
            raise
        except Exception as error:  # TVM's own errors, of many types and lines
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise BackendError(f"the tuned schedule does not fit: {name}: {said[:200]}") from None
        replaying.name(outputs, results, name)
    _check_result(schedule)


def _parts(trace: Any) -> tuple[list[Any], dict[int, Any]]:
    try:
        instructions, decisions = trace
        numbered = dict(decisions)
        sound = all(
            len(i) == 4
            and type(i[0]) is str
            and all(type(part) is list and len(part) <= MOST_VALUES for part in i[1:])
            for i in instructions
        )
    except (TypeError, ValueError):
        sound, instructions, numbered = False, [], {}
    if not sound or not 0 < len(instructions) <= _MOST_INSTRUCTIONS or len(numbered) > len(instructions):
        raise BackendError("the tuned schedule is damaged: it is no list of instructions")
    return instructions, numbered


def _check_result(schedule: TvmSchedule) -> None:
    """BackendError for what would take the compiler, or the compiled function, beyond all bounds."""
    function, weights = schedule.mod["main"], weights_of(schedule)
    repacked = [copied_weight(b, weights) for b in blocks_of(schedule) if REPACKING in b.annotations]
    if None in repacked or len(set(repacked)) != len(repacked):
        raise refused("a block to be done beforehand that stores no weight")
    for loop in statements(function.body, tirx.For):
        if loop.kind != tirx.ForKind.VECTORIZED:
            continue
        lanes = loop.extent
        if not isinstance(lanes, tirx.IntImm) or int(lanes) > MOST_LANES:
            raise refused(f"vectors of {lanes}")
        if any(inner.kind == tirx.ForKind.VECTORIZED for inner in statements(loop.body, tirx.For)):
            raise refused("vectors of vectors")
    buffers = [b for block in blocks_of(schedule) for b in block.alloc_buffers]
    given = sum(_elements(b) for b in function.params)
    if (allocated := sum(map(_elements, buffers))) > _ALLOCATION_RATIO * given:
        raise refused(f"buffers of {allocated} elements")


def _elements(buffer: Any) -> int:
    return math.prod(int(d) for d in buffer.shape)
