"""The instructions that a tuned schedule may have, and what each may say (see `tuning.replay`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule as TvmSchedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from collage_core.errors import BackendError
from collage_tvm.tuning.index_map import Digit, digits_of
from collage_tvm.tuning.scheduled import REPACKING, blocks_of, copied_weight, weights_of

__all__ = ["INSTRUCTIONS", "MOST_LANES", "MOST_VALUES", "Replay", "refused"]

MOST_VALUES = 64
"""Loops, blocks or numbers that one instruction takes or yields."""
MOST_LANES = 64
"""Of a vector."""
_MOST_FACTOR = 64
_MOST_UNROLLED = 512
_MOST_JOBS = 1 << 20

_TILING = re.compile(r"[SR]{1,16}")
_MARKS: dict[str, Callable[[Any], bool]] = {
    "meta_schedule.parallel": lambda v: _is_integer(v, 1, _MOST_JOBS),
    "meta_schedule.random_compute_producer": lambda v: _is_integer(v, 1, 1),
    "meta_schedule.tiling_structure": lambda v: isinstance(v, str) and bool(_TILING.fullmatch(v)),
    "meta_schedule.unroll_explicit": lambda v: _is_integer(v, 0, _MOST_UNROLLED),
    "meta_schedule.vectorize": lambda v: _is_integer(v, 1, MOST_LANES),
    "pragma_auto_unroll_max_step": lambda v: _is_integer(v, 0, _MOST_UNROLLED),
    "pragma_unroll_explicit": lambda v: _is_integer(v, 0, 1),
    REPACKING: lambda v: _is_integer(v, 1, 1),
}
"""What may be written on a block or loop, and which values."""


def refused(what: str) -> BackendError:
    """The error for a schedule that has something else than our own tuner writes."""
    return BackendError(f"the tuned schedule has {what[:200]}, which is not allowed")


def _is_integer(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


class Replay:
    """A schedule, and the blocks, loops and numbers that instructions have named so far."""

    def __init__(self, schedule: TvmSchedule) -> None:
        self.schedule = schedule
        self._named: dict[str, Any] = {}

    def name(self, names: Sequence[object], results: Sequence[Any], instruction: str) -> None:
        if len(names) != len(results) or not all(type(n) is str for n in names):
            raise refused(f"{len(names)} results of {instruction}, where there are {len(results)}")
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
            raise refused(f"{name!r} for a {what}")
        return value

    def value(self, given: object) -> object:
        """A number, a number by its name, or a text in quotation marks."""
        if type(given) is not str:
            return given
        if given[:1] == given[-1:] == '"':
            return given[1:-1]
        sampled = self._named.get(given)
        if sampled is None or isinstance(sampled, SBlockRV | LoopRV):
            raise refused(f"{given!r} for a number")
        return int(self.schedule.get(sampled))

    def factor(self, given: object) -> int | None:
        """None, which is written "None", for what the other factors leave."""
        if given == "None":
            return None
        number = self.value(given)
        if type(number) is not int or number < 1:
            raise refused(f"the factor {number!r}")
        return number


_Values = list[Any]


def _expect(values: _Values, *wanted: object, of: str) -> None:
    """Refuses other attributes than these; 1 and True are not the same."""
    if [(type(v), v) for v in values] != [(type(w), w) for w in wanted]:
        raise refused(f"{of} with {values!r}")


def _get_block(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [] = inputs
    name, function = attributes
    if type(name) is not str or function != "main":
        raise refused(f"the block {attributes!r}")
    return [r.schedule.get_sblock(name, "main")]


def _get_loops(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [block] = inputs
    return list(r.schedule.get_loops(r.block(block)))


def _get_child_blocks(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [place] = inputs
    return list(r.schedule.get_child_blocks(r.place(place)))


def _get_consumers(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [block] = inputs
    return list(r.schedule.get_consumers(r.block(block)))


def _get_producers(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [block] = inputs
    return list(r.schedule.get_producers(r.block(block)))


def _sample_tile(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [loop] = inputs
    count, most = attributes
    if not _is_integer(count, 1, 8) or not _is_integer(most, 1, _MOST_FACTOR):
        raise refused(f"tiles of {attributes!r}")
    if type(decision) is not list or len(decision) != count:
        raise refused(f"the tiles {decision!r}")
    extent = r.schedule.get(r.loop(loop)).extent
    if not all(_is_integer(d, 1, int(extent)) for d in decision) or math.prod(decision) != int(extent):
        raise refused(f"the tiles {decision!r} of {int(extent)}")
    return list(r.schedule.sample_perfect_tile(r.loop(loop), count, most, decision))


def _sample_one(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [] = inputs
    candidates, chances = attributes
    if type(candidates) is not list or not all(_is_integer(c, 0, _MOST_UNROLLED) for c in candidates):
        raise refused(f"the choices {candidates!r}")
    if not 0 < len(candidates) == len(chances) <= MOST_VALUES or not all(type(c) is float for c in chances):
        raise refused(f"the chances {chances!r}")
    if not _is_integer(decision, 0, len(candidates) - 1):
        raise refused(f"the choice {decision!r}")
    return [r.schedule.sample_categorical(candidates, chances, decision)]


def _sample_location(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [block] = inputs
    if not _is_integer(decision, -2, MOST_VALUES):
        raise refused(f"the location {decision!r}")
    return [r.schedule.sample_compute_location(r.block(block), decision)]


def _split(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    loop, *factors = inputs
    # The last attribute would leave out the checks that keep what is split unevenly inside its array.
    _expect(attributes, 1, 0, of="Split")
    return list(r.schedule.split(r.loop(loop), [r.factor(f) for f in factors]))


def _fuse(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    _expect(attributes, 1, of="Fuse")
    return [r.schedule.fuse(*r.loops(inputs))]


def _reorder(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    r.schedule.reorder(*r.loops(inputs))
    return []


def _parallel(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [loop] = inputs
    r.schedule.parallel(r.loop(loop))
    return []


def _vectorize(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [loop] = inputs
    r.schedule.vectorize(r.loop(loop))
    return []


def _compute_at(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    block, loop = inputs
    _expect(attributes, 1, -1, of="ComputeAt")
    r.schedule.compute_at(r.block(block), r.loop(loop), preserve_unit_loops=True)
    return []


def _reverse_compute_at(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    block, loop = inputs
    _expect(attributes, 1, -1, of="ReverseComputeAt")
    r.schedule.reverse_compute_at(r.block(block), r.loop(loop), preserve_unit_loops=True)
    return []


def _decompose_reduction(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    block, loop = inputs
    return [r.schedule.decompose_reduction(r.block(block), r.loop(loop))]


def _rfactor(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [loop], [axis] = inputs, attributes
    if not _is_integer(axis, -1, MOST_VALUES):
        raise refused(f"the axis {axis!r}")
    return [r.schedule.rfactor(r.loop(loop), axis)]


def _annotate(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [place, given], key = inputs, _mark(attributes)
    value = r.value(given)
    if not _MARKS[key](value):
        raise refused(f"the annotation {key} = {value!r}")
    r.schedule.annotate(r.place(place), key, value)
    return []


def _unannotate(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    [place], key = inputs, _mark(attributes)
    r.schedule.unannotate(r.place(place), key)
    return []


def _mark(attributes: _Values) -> str:
    [key] = attributes
    if type(key) is not str or key not in _MARKS:
        raise refused(f"the annotation {key!r}")
    return key


def _cache_read(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    """A weight that is to be stored in another order."""
    [block, consumers], (index, scope) = inputs, attributes
    if consumers != [] or scope != "global" or not _is_integer(index, 0, MOST_VALUES):
        raise refused(f"CacheRead of {inputs!r} {attributes!r}")
    read = r.schedule.get(r.block(block)).reads[index].source
    if not any(read.same_as(weight) for weight in weights_of(r.schedule)):
        raise refused("CacheRead of what is no weight")
    return [r.schedule.cache_read(r.block(block), index, "global")]


def _transform_layout(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    """Another order for what `_cache_read` has made."""
    block, text = inputs
    index = attributes[0]
    _expect(attributes[1:], 0, None, False, of="TransformLayout")
    if not _is_integer(index, 0, MOST_VALUES) or type(text) is not str:
        raise refused(f"TransformLayout of {inputs!r}")
    buffer = r.schedule.get(r.block(block)).reads[index].source
    made = [b for b in blocks_of(r.schedule) if any(w.source.same_as(buffer) for w in b.writes)]
    if not made or not all(copied_weight(b, weights_of(r.schedule)) for b in made):
        raise refused("TransformLayout of what is no copy of a weight")
    digits = digits_of(text, [int(d) for d in buffer.shape])
    r.schedule.transform_layout(r.block(block), ("read", index), lambda *i: [_stored(d, i) for d in digits])
    return []


def _stored(digit: Digit, index: Sequence[Any]) -> Any:
    place = index[digit.dimension]
    if digit.below is not None:
        place = tirx.floormod(place, digit.below)
    return place if digit.divisor == 1 else tirx.floordiv(place, digit.divisor)


def _enter_postproc(r: Replay, inputs: _Values, attributes: _Values, decision: Any) -> _Values:
    r.schedule.enter_postproc()
    return []


INSTRUCTIONS: dict[str, Callable[[Replay, _Values, _Values, Any], _Values]] = {
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
