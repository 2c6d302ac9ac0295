"""What an optimization has found is kept for the next one of the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collage_core import Constraints, CostDatabase, Target, default_registry
from collage_core.candidates import generate_candidates
from collage_core.ir import from_model
from collage_core.measuring.beside import Load
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Silent, Timed
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.aim import Aim
from collage_core.pipeline.budget import Budget
from collage_core.pipeline.effort import QUICK
from collage_core.pipeline.memory import Memory, memory_key
from collage_core.pipeline.proof import Single
from collage_core.placement import Placement
from collage_core.search import OpLevelSearch
from collage_core.search.problem import Solution
from collage_core.search.searcher import SearchResult
from collage_core.search.transitions import Transitions
from collage_core.serving import Serving

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_PLACEMENT = Placement((), (), Target("cpu", 1), 2.0)
_MEMORY = Memory(
    [SearchResult(_PLACEMENT, Solution((), 2.0, False, 1.5, "manual", 7)), SearchResult(_PLACEMENT), None],
    (Single("a", _PLACEMENT, alone=True),),
    (Single("a", None, alone=False, reason="it crashed"),),
    2,
    {"0123": "a: it crashed"},
    ("89ab",),
    ("0000",),
    ("cdef",),
    "4567",
    {"a": _PLACEMENT},
    2.5,
)


def test_it_is_recalled_as_it_was() -> None:
    recalled = Memory.of_record(_MEMORY.to_record())
    assert recalled is not None
    assert replace(recalled, searches=[]) == replace(_MEMORY, searches=[])
    first, second, third = recalled.searches
    assert first is not None
    assert second is not None
    assert third is None
    assert first.placement == second.placement == _PLACEMENT
    assert first.solution is not None
    assert (first.solution.lower_bound_ms, first.solution.states) == (1.5, 7)
    undecided = Memory.of_record(replace(_MEMORY, seated=None).to_record())
    assert undecided is not None
    assert undecided.seated is None


def test_what_is_damaged_or_of_another_form_is_not_recalled() -> None:
    record = _MEMORY.to_record()
    for key in record.details:
        without = {k: v for k, v in record.details.items() if k != key}
        assert Memory.of_record(replace(record, details=without)) is None
        if key not in ("costs", "left_out", "out_of_time", "seated"):
            other = replace(record, details={**record.details, key: "others"})
            assert Memory.of_record(other) is None, key
    assert Memory.of_record(None) is None


def test_it_is_of_these_pins_constants_this_search_and_load(parse: Parse) -> None:
    """Twins have the same kernels: which of them is pinned says only where these may stand."""
    twins = "[a] a = Relu(x) [b] b = Tanh(a) [c] c = Relu(b) [d] y = Tanh(c)"
    graph = from_model(parse(f"(float[8] x) => (float[8] y) {{ {twins} }}"))
    backends = {b.name: b for b in default_registry().available(["dnnl", "reference"])}

    nothing = CostDatabase(":memory:")

    def key(
        pins: dict[str, str] | None = None,
        group_ms: float = 0.0,
        searcher: OpLevelSearch | None = None,
        load: Load | None = None,
    ) -> str:
        asked = Constraints(pins or {})
        found = generate_candidates(graph, backends.values(), _PLACEMENT.target, asked)
        progress = Timed(Silent())
        machine = Machine(backends, _PLACEMENT.target, nothing, default_registry(), progress)
        search = searcher or OpLevelSearch()
        with Workspace(graph) as workspace:
            aim = Aim(machine, workspace, QUICK, Budget(), asked, search, progress, print, load=load)
            return memory_key(aim, found, Transitions({"dnnl": group_ms})).structure

    pinned = [key({name: "dnnl"}) for name in "abcd"]
    loads = [key(load=Load.of(Serving(3, sessions))) for sessions in (2, 3)]
    keys = [key(), *pinned, key(group_ms=0.01), key(searcher=OpLevelSearch(beam=7)), *loads]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    nothing.close()
