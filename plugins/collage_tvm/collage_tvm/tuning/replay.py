"""A tuned schedule done again, instruction by instruction.

A schedule is a program for TVM, and may come from a bundle that a stranger wrote. So TVM is never handed its
text: what is not one of the instructions that our own tuner writes, with arguments of the kinds and sizes
that it gives them, is refused here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import Schedule as TvmSchedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from collage_core.errors import BackendError
from collage_tvm.tuning.index_map import Digit, digits_of

__all__ = ["REPACKING", "replay"]

REPACKING = "meta_schedule.layout_rewrite_preproc"
"""Annotation of a block that stores a weight in another order, before everything else."""

_MOST_INSTRUCTIONS = 512
_MOST_VALUES = 64
"""Loops, blocks or numbers that one instruction takes or yields."""
_MOST_LANES = 64
_MOST_FACTOR = 64
_MOST_UNROLLED = 512
_MOST_JOBS = 1 << 20
_ALLOCATION_RATIO = 64
"""How many times as much as its parameters take the function may allocate for what is in between."""

_TILING = re.compile(r"[SR]{1,16}")
_MARKS: dict[str, Callable[[Any], bool]] = {
    "meta_schedule.parallel": lambda v: _is_integer(v, 1, _MOST_JOBS),
    "meta_schedule.random_compute_producer": lambda v: _is_integer(v, 1, 1),
    "meta_schedule.tiling_structure": lambda v: isinstance(v, str) and bool(_TILING.fullmatch(v)),
    "meta_schedule.unroll_explicit": lambda v: _is_integer(v, 0, _MOST_UNROLLED),
    "meta_schedule.vectorize": lambda v: _is_integer(v, 1, _MOST_LANES),
    "pragma_auto_unroll_max_step": lambda v: _is_integer(v, 0, _MOST_UNROLLED),
    "pragma_unroll_explicit": lambda v: _is_integer(v, 0, 1),
    REPACKING: lambda v: _is_integer(v, 1, 1),
}
"""What may be written on a block or loop, and which values."""


def replay(trace: Any, schedule: TvmSchedule) -> None:
    """Do to `schedule` what `trace` (MetaSchedule's JSON) tells. BackendError, in one line, for what is not
    allowed or cannot be done.
    """
    instructions, decisions = _parts(trace)
    replaying = _Replay(schedule)
    for number, instruction in enumerate(instructions):
        name, inputs, attributes, outputs = instruction
        do = _INSTRUCTIONS.get(name)
        if do is None:
            raise _refused(f"the instruction {name!r}")
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
            and all(type(part) is list and len(part) <= _MOST_VALUES for part in i[1:])
            for i in instructions
        )
    except (TypeError, ValueError):
        sound, instructions, numbered = False, [], {}
    if not sound or not 0 < len(instructions) <= _MOST_INSTRUCTIONS or len(numbered) > len(instructions):
        raise BackendError("the tuned schedule is damaged: it is no list of instructions")
    return instructions, numbered


def _refused(what: str) -> BackendError:
    return BackendError(f"the tuned schedule has {what[:200]}, which is not allowed")


def _is_integer(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


class _Replay:
    """A schedule, and the blocks, loops and numbers that instructions have named so far."""

    def __init__(self, schedule: TvmSchedule) -> None:
        self.schedule = schedule
        self._named: dict[str, Any] = {}

    def name(self, names: Sequence[object], results: Sequence[Any], instruction: str) -> None:
        if len(names) != len(results) or not all(type(n) is str for n in names):
            raise _refused(f"{len(names)} results of {instruction}, where there are {len(results)}")
        self._named.update(zip(names, results, strict=True))  # type: ignore[arg-type]  # checked above

    def block(self, name: object) -> Any:
        return self._of(name, SBlockRV, "block")

    def loop(self, name: object) -> Any:
        return self._of(name, LoopRV, "loop")

    def loops(self, names: Sequence[object]) -> list[Any]:
        return [self.loop(n) for n in names]

    def place(self, name: object) -> Any:
        """A block or a loop."""
        return self._of(name, SBlockRV | LoopRV, "block or loop")

    def _of(self, name: object, kind: Any, what: str) -> Any:
        value = self._named.get(name) if type(name) is str else None
        if not isinstance(value, kind):
            raise _refused(f"{name!r} for a {what}")
        return value

    def value(self, given: object) -> object:
        """A number, a number by its name, or a text in quotation marks."""
        if type(given) is not str:
            return given
        if given[:1] == given[-1:] == '"':
            return given[1:-1]
        sampled = self._named.get(given)
        if sampled is None or isinstance(sampled, SBlockRV | LoopRV):
            raise _refused(f"{given!r} for a number")
        return int(self.schedule.get(sampled))

    def factor(self, given: object) -> int | None:
        """None, which is written "None", for what the other factors leave."""
        if given == "None":
            return None
        number = self.value(given)
        if type(number) is not int or number < 1:
            raise _refused(f"the factor {number!r}")
        return number


_Values = list[Any]


def _expect(values: _Values, *wanted: object, of: str) -> None:
    """Refuses other attributes than these; 1 and True are not the same."""
    if [(type(v), v) for v in values] != [(type(w), w) for w in wanted]:
        raise _refused(f"{of} with {values!r}")


def _get_block(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [] = inputs
    name, function = attributes
    if type(name) is not str or function != "main":
        raise _refused(f"the block {attributes!r}")
    return [r.schedule.get_sblock(name, "main")]


def _get_loops(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [block] = inputs
    return list(r.schedule.get_loops(r.block(block)))


def _get_child_blocks(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [place] = inputs
    return list(r.schedule.get_child_blocks(r.place(place)))


def _get_consumers(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [block] = inputs
    return list(r.schedule.get_consumers(r.block(block)))


def _get_producers(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [block] = inputs
    return list(r.schedule.get_producers(r.block(block)))


def _sample_tile(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [loop] = inputs
    count, most = attributes
    if not _is_integer(count, 1, 8) or not _is_integer(most, 1, _MOST_FACTOR):
        raise _refused(f"tiles of {attributes!r}")
    if type(decision) is not list or len(decision) != count:
        raise _refused(f"the tiles {decision!r}")
    extent = r.schedule.get(r.loop(loop)).extent
    if not all(_is_integer(d, 1, int(extent)) for d in decision) or math.prod(decision) != int(extent):
        raise _refused(f"the tiles {decision!r} of {int(extent)}")
    return list(r.schedule.sample_perfect_tile(r.loop(loop), count, most, decision))


def _sample_one(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [] = inputs
    candidates, chances = attributes
    if type(candidates) is not list or not all(_is_integer(c, 0, _MOST_UNROLLED) for c in candidates):
        raise _refused(f"the choices {candidates!r}")
    if not 0 < len(candidates) == len(chances) <= _MOST_VALUES or not all(type(c) is float for c in chances):
        raise _refused(f"the chances {chances!r}")
    if not _is_integer(decision, 0, len(candidates) - 1):
        raise _refused(f"the choice {decision!r}")
    return [r.schedule.sample_categorical(candidates, chances, decision)]


def _sample_location(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [block] = inputs
    if not _is_integer(decision, -2, _MOST_VALUES):
        raise _refused(f"the location {decision!r}")
    return [r.schedule.sample_compute_location(r.block(block), decision)]


def _split(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    loop, *factors = inputs
    # The last attribute would leave out the checks that keep what is split unevenly inside its array.
    _expect(attributes, 1, 0, of="Split")
    return list(r.schedule.split(r.loop(loop), [r.factor(f) for f in factors]))


def _fuse(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    _expect(attributes, 1, of="Fuse")
    return [r.schedule.fuse(*r.loops(inputs))]


def _reorder(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    r.schedule.reorder(*r.loops(inputs))
    return []


def _parallel(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [loop] = inputs
    r.schedule.parallel(r.loop(loop))
    return []


def _vectorize(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [loop] = inputs
    r.schedule.vectorize(r.loop(loop))
    return []


def _compute_at(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    block, loop = inputs
    _expect(attributes, 1, -1, of="ComputeAt")
    r.schedule.compute_at(r.block(block), r.loop(loop), preserve_unit_loops=True)
    return []


def _reverse_compute_at(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    block, loop = inputs
    _expect(attributes, 1, -1, of="ReverseComputeAt")
    r.schedule.reverse_compute_at(r.block(block), r.loop(loop), preserve_unit_loops=True)
    return []


def _decompose_reduction(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    block, loop = inputs
    return [r.schedule.decompose_reduction(r.block(block), r.loop(loop))]


def _rfactor(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [loop], [axis] = inputs, attributes
    if not _is_integer(axis, -1, _MOST_VALUES):
        raise _refused(f"the axis {axis!r}")
    return [r.schedule.rfactor(r.loop(loop), axis)]


def _annotate(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [place, given], key = inputs, _mark(attributes)
    value = r.value(given)
    if not _MARKS[key](value):
        raise _refused(f"the annotation {key} = {value!r}")
    r.schedule.annotate(r.place(place), key, value)
    return []


def _unannotate(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [place], key = inputs, _mark(attributes)
    r.schedule.unannotate(r.place(place), key)
    return []


def _mark(attributes: _Values) -> str:
    [key] = attributes
    if type(key) is not str or key not in _MARKS:
        raise _refused(f"the annotation {key!r}")
    return key


def _cache_read(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    """A weight that is to be stored in another order."""
    [block, consumers], (index, scope) = inputs, attributes
    if consumers != [] or scope != "global" or not _is_integer(index, 0, _MOST_VALUES):
        raise _refused(f"CacheRead of {inputs!r} {attributes!r}")
    read = r.schedule.get(r.block(block)).reads[index].source
    if not any(read.same_as(weight) for weight in _weights(r.schedule)):
        raise _refused("CacheRead of what is no weight")
    return [r.schedule.cache_read(r.block(block), index, "global")]


def _transform_layout(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    """Another order for what `_cache_read` has made."""
    block, text = inputs
    index = attributes[0]
    _expect(attributes[1:], 0, None, False, of="TransformLayout")
    if not _is_integer(index, 0, _MOST_VALUES) or type(text) is not str:
        raise _refused(f"TransformLayout of {inputs!r}")
    buffer = r.schedule.get(r.block(block)).reads[index].source
    made = [b for b in _blocks(r.schedule) if any(w.source.same_as(buffer) for w in b.writes)]
    if not made or not all(_copied(b, _weights(r.schedule)) for b in made):
        raise _refused("TransformLayout of what is no copy of a weight")
    digits = digits_of(text, [int(d) for d in buffer.shape])
    r.schedule.transform_layout(r.block(block), ("read", index), lambda *i: [_stored(d, i) for d in digits])
    return []


def _stored(digit: Digit, index: Sequence[Any]) -> Any:
    place = index[digit.dimension]
    if digit.below is not None:
        place = tirx.floormod(place, digit.below)
    return place if digit.divisor == 1 else tirx.floordiv(place, digit.divisor)


def _enter_postproc(r: _Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    r.schedule.enter_postproc()
    return []


_INSTRUCTIONS: dict[str, Callable[[_Replay, _Values, _Values, Any], _Values]] = {
    "Annotate": _annotate,
    "CacheRead": _cache_read,
    "ComputeAt": _compute_at,
    "DecomposeReduction": _decompose_reduction,
    "EnterPostproc": _enter_postproc,
    "Fuse": _fuse,
    "GetChildBlocks": _get_child_blocks,
    "GetConsumers": _get_consumers,
    "GetLoops": _get_loops,
    "GetProducers": _get_producers,
    "GetSBlock": _get_block,
    "Parallel": _parallel,
    "RFactor": _rfactor,
    "Reorder": _reorder,
    "ReverseComputeAt": _reverse_compute_at,
    "SampleCategorical": _sample_one,
    "SampleComputeLocation": _sample_location,
    "SamplePerfectTile": _sample_tile,
    "Split": _split,
    "TransformLayout": _transform_layout,
    "Unannotate": _unannotate,
    "Vectorize": _vectorize,
}
"""All that the rules and postprocessors that MetaSchedule has for processors write for our workloads."""


def _weights(schedule: TvmSchedule) -> list[Any]:
    """The buffers of the function's parameters that may be stored in another order."""
    function = schedule.mod["main"]
    places = function.attrs.get("layout_free_buffers", []) if function.attrs else []
    return [function.params[int(k)] for k in places]


def _blocks(schedule: TvmSchedule) -> list[Any]:
    return _found(schedule.mod["main"].body, SBlock)


def _found(statement: Any, kind: Any) -> list[Any]:
    """The statements of this kind within one, itself included."""
    found: list[Any] = []
    tvm_ffi.structural_walk(statement, (kind, found.append), order="pre")
    return found


def _copied(block: Any, weights: Sequence[Any]) -> int | None:
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


def _check_result(schedule: TvmSchedule) -> None:
    """BackendError for what would take the compiler, or the compiled function, beyond all bounds."""
    function, weights = schedule.mod["main"], _weights(schedule)
    repacked = [_copied(b, weights) for b in _blocks(schedule) if REPACKING in b.annotations]
    if None in repacked or len(set(repacked)) != len(repacked):
        raise _refused("a block to be done beforehand that stores no weight")
    for loop in _found(function.body, tirx.For):
        if loop.kind != tirx.ForKind.VECTORIZED:
            continue
        lanes = loop.extent
        if not isinstance(lanes, tirx.IntImm) or int(lanes) > _MOST_LANES:
            raise _refused(f"vectors of {lanes}")
        if any(inner.kind == tirx.ForKind.VECTORIZED for inner in _found(loop.body, tirx.For)):
            raise _refused("vectors of vectors")
    buffers = [b for block in _blocks(schedule) for b in block.alloc_buffers]
    given = sum(_elements(b) for b in function.params)
    if (allocated := sum(map(_elements, buffers))) > _ALLOCATION_RATIO * given:
        raise _refused(f"buffers of {allocated} elements")


def _elements(buffer: Any) -> int:
    return math.prod(int(d) for d in buffer.shape)
