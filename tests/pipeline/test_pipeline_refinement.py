"""Costs in place: what executables show of kernels corrects what they cost alone, and the search is asked
again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from chain_placements import OK, TARGET, in_turn, key_of
from simulated_sittings import details_of_ms

from collage_core import plain_variant
from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.measuring.bounding import search_placement
from collage_core.measuring.comparison import Comparison
from collage_core.measuring.costing import Costs
from collage_core.measuring.end_to_end import PARTS
from collage_core.measuring.in_place import InPlace
from collage_core.pipeline.proof import IN_PLACE, MIX, Compare, Single
from collage_core.pipeline.refinement import TURNS, Refined, Refinement, anchor_of
from collage_core.placement import Group, Placement
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.searcher import SearchResult
from collage_core.search.transitions import Transitions

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_PREDICTED = {("near", "far", "far"): 10.0, ("near",) * 3: 24.0, ("far",) * 3: 26.0}
Times = Mapping[tuple[str, str], float]
"""By backend and operator, in ms."""


@dataclass
class _Machine:
    """Kernels of "left" and "right" that cost `alone` by themselves, and take `true` in executables."""

    graph: Graph
    alone: Times
    true: Times
    slower: float = 1.0
    """By how much everything takes longer from one run to the next."""
    fails: Mapping[int, str] = field(default_factory=dict)
    """By number of the run the contender that fails in it."""
    searches: int = 99
    """After so many, the first among them, no more are answered."""
    slow_at_first: float = 1.0
    """By how much the mix takes longer in the run of number `slow_run`."""
    slow_run: int = 0
    fails_again: bool = False
    """Whether the mix fails where it is run once more."""
    remembers: bool = False
    """Whether what was seen in place is searched by itself, too."""
    seen_ms: float | None = None
    """What the best of that is predicted to take, whatever it holds."""
    asked: int = 0
    """So many searches among all."""
    time_is_over: Callable[[int], bool] = lambda ran: False
    runs: list[Mapping[str, Placement]] = field(default_factory=list)
    again: list[Mapping[str, Placement]] = field(default_factory=list)
    """What was run once more."""

    def __post_init__(self) -> None:
        self.compare: Compare = self._compare

    def refine(self, transitions: Transitions | None = None) -> Refined:
        subgraphs = [Subgraph(self.graph, [n.id]) for n in self.graph.nodes]
        candidates = CandidateSet(
            self.graph,
            TARGET,
            tuple(
                Candidate(s, backend, plain_variant(s), "pattern")
                for s in subgraphs
                for backend in ("left", "right")
            ),
            {},
            {"left": BackendKind.OPERATOR, "right": BackendKind.OPERATOR},
        )
        kernels = {
            (c.subgraph.key, str(c.variant), c.backend): replace(OK, median_ms=self._of(c, self.alone))
            for c in candidates.candidates
        }
        self.costs = Costs(kernels, {}, transitions=transitions or Transitions())

        def search(*backends: str) -> SearchResult:
            return search_placement(candidates, self.costs, OpLevelSearch(), backends or None)

        def search_all() -> SearchResult | None:
            self.asked += 1
            return search() if self.asked < self.searches else None

        def search_seen() -> SearchResult | None:
            if not self.remembers:
                return None
            seen = tuple(c for c in candidates.candidates if c.kernel_key in self.costs.in_place.kernels_ms)
            found = search_placement(replace(candidates, candidates=seen), self.costs, OpLevelSearch())
            predicted_ms = self.seen_ms or found.placement.predicted_ms
            return replace(found, placement=replace(found.placement, predicted_ms=predicted_ms))

        singles = [Single(b, search(b).placement, alone=True) for b in ("left", "right")]
        refinement = Refinement(self.graph, self.costs, singles, self.compare)
        return refinement.refine(search(), search_all, search_seen, time_is_over=self.time_is_over)

    def _of(self, part: Candidate | Group, times: Times) -> float:
        node = part.nodes[0] if isinstance(part, Group) else part.subgraph.nodes[0].id
        return times[part.backend, self.graph.node(node).op_type]

    def _compare(
        self,
        title: str,
        placements: Mapping[str, Placement],
        timed: Collection[str],
        *,
        thorough: bool = False,
    ) -> Comparison:
        is_first = title == IN_PLACE
        number = len(self.runs) - (not is_first)
        failing = self.fails.get(number) if is_first else None
        (self.runs if is_first else self.again).append(placements)
        assert set(timed) == set(placements)
        records = {}
        for label, p in placements.items():
            pace = self.slower**number
            if label == MIX and is_first and number == self.slow_run:
                pace *= self.slow_at_first
            parts_ms = [pace * self._of(g, self.true) for g in p.groups]
            details = {PARTS: parts_ms, **details_of_ms([[sum(parts_ms)] * 3])}
            records[label] = CostRecord("ok", sum(parts_ms), 0.0, 9, details=details)
            if label == failing or (label == MIX and not is_first and self.fails_again):
                records[label] = CostRecord("failed", reason="it fell")
        return Comparison(records, measured=True)


def _times(left: tuple[float, float, float], right: tuple[float, float, float]) -> Times:
    ops = ("Relu", "Neg", "Abs")
    return {
        (b, op): ms for b, row in (("left", left), ("right", right)) for op, ms in zip(ops, row, strict=True)
    }


def test_a_kernel_that_was_flattered_is_dropped(graph: Graph) -> None:
    """Right's Neg was measured at 1 ms and takes 3; left's takes 2 either way."""
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): 3.0})
    result, *_ = machine.refine()
    assert [g.backend for g in result.placement.groups] == ["left", "left", "right"]
    assert result.placement.predicted_ms == pytest.approx(4.0)
    assert result.placement.optimal
    assert [t["predicted_ms"] for t in result.history["turns"]] == pytest.approx([3.0, 4.0 + 2 / 3])
    assert [t["took_ms"] for t in result.history["turns"]] == pytest.approx([5.0, 4.0])
    assert len(machine.runs) == 2
    assert machine.costs.kernels[key_of(graph, "b", "right")].median_ms == 1.0, "what it costs alone is kept"


def test_what_stands_is_run_once(graph: Graph) -> None:
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, alone)
    result, *_ = machine.refine()
    assert [g.backend for g in result.placement.groups] == ["left", "right", "right"]
    assert result.placement.predicted_ms == pytest.approx(3.0)
    assert len(machine.runs) == 1


def test_a_process_that_is_slow_by_itself_is_run_again(graph: Graph) -> None:
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, alone, slow_at_first=1.5)
    result, comparisons, *_ = machine.refine()
    assert [g.backend for g in result.placement.groups] == ["left", "right", "right"]
    assert result.placement.predicted_ms == pytest.approx(3.0)
    assert [t["took_ms"] for t in result.history["turns"]] == pytest.approx([3.0])
    assert (len(machine.runs), len(machine.again), len(comparisons)) == (1, 1, 2)
    assert machine.again[0].keys() == {MIX, "anchor"}


@pytest.mark.parametrize(("by", "again"), [(1.1, 0), (1.2, 1)])
def test_a_later_one_is_held_to_what_is_known_by_then(graph: Graph, by: float, again: int) -> None:
    """All takes 0.4 times as long in place as alone: of the anchor that is known, too."""
    alone = _times((1, 1.3, 5), (4, 1, 1))
    true = {part: 0.4 * ms for part, ms in alone.items()} | {("right", "Neg"): 0.64}
    machine = _Machine(graph, alone, true, slow_at_first=by, slow_run=1)
    machine.refine()
    assert (len(machine.runs), len(machine.again)) == (2, again)


def test_one_that_fails_the_second_time_has_failed(graph: Graph) -> None:
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, alone, slow_at_first=1.5, fails_again=True)
    result, _, _, failed = machine.refine()
    assert failed == {result.placement.digest: "mix: it fell"}
    assert len(machine.again) == 1


def test_nothing_is_run_again_when_time_is_over(graph: Graph) -> None:
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, alone, slow_at_first=1.5)
    machine.time_is_over = bool
    machine.refine()
    assert (len(machine.runs), len(machine.again)) == (1, 0)


@pytest.mark.parametrize(("by", "again"), [(1.1, 0), (1.2, 1)])
def test_what_is_a_little_slower_is_believed_at_once(graph: Graph, by: float, again: int) -> None:
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, alone, slow_at_first=by)
    machine.refine()
    assert len(machine.again) == again


def test_a_machine_that_slows_down_changes_nothing(graph: Graph) -> None:
    """All that is run later takes a fifth longer; what was seen before must not look faster for it."""
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): 3.0}, slower=1.2)
    result, *_ = machine.refine()
    assert [g.backend for g in result.placement.groups] == ["left", "left", "right"]
    assert result.placement.predicted_ms == pytest.approx(4.0)
    assert [t["took_ms"] for t in result.history["turns"]] == pytest.approx([5.0, 4.8])


def test_the_fastest_that_was_run_is_kept(graph: Graph) -> None:
    """A rival that looks better on paper, and is worse: the first one stays."""
    alone = _times((1, 2, 5), (4, 1.9, 1))
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): 2.2, ("left", "Neg"): 2.6})
    result, *_ = machine.refine()
    assert len(machine.runs) == 2
    assert [g.backend for g in result.placement.groups] == ["left", "right", "right"]
    assert result.placement.predicted_ms == pytest.approx(4.2)


def test_next_to_nothing_is_not_worth_a_run(graph: Graph) -> None:
    alone = _times((1, 2, 5), (4, 1.9, 1))
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): 2.05})
    result, *_ = machine.refine()
    assert len(machine.runs) == 1
    assert not result.placement.optimal
    assert result.solution is not None
    assert result.solution.lower_bound_ms == pytest.approx(2 + 2 * 7.05 / 6.9)
    assert result.solution.total_ms == result.placement.predicted_ms == pytest.approx(4.05)


def test_where_it_fails_as_a_whole_the_first_answer_stays(graph: Graph) -> None:
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): 3.0}, fails={0: MIX})
    result, _, _, failed = machine.refine()
    assert [g.backend for g in result.placement.groups] == ["left", "right", "right"]
    assert len(machine.runs) == 1
    assert machine.costs.in_place == InPlace()
    assert failed == {result.placement.digest: "mix: it fell"}


@pytest.mark.parametrize(
    ("left", "right", "then"),
    [
        ((1, 2, 5), (4, 1, 1), MIX),
        ((1, 2, 4), (4, 1, 1), MIX),  # left is no hopeless case, but was not run
        ((1, 2, 1.2), (2.1, 1, 1), "left"),
    ],
)
def test_where_the_fastest_alone_fails_the_next_is_what_others_run_beside(
    graph: Graph, left: tuple[float, float, float], right: tuple[float, float, float], then: str
) -> None:
    """Right alone falls. Left comes near, or else there is but the mix itself."""
    alone = _times(left, right)
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): 3.0}, fails={0: "anchor"})
    result, _, _, failed = machine.refine()
    assert [g.backend for g in result.placement.groups] == ["left", "left", "right"]
    assert len(machine.runs) == 2
    assert failed == {machine.runs[0]["anchor"].digest: "right: it fell"}
    assert machine.runs[1]["anchor"] == machine.runs[0][then]


def test_nothing_that_failed_is_measured_beside(graph: Graph) -> None:
    mix, near, far = (replace(in_turn(graph, *b), predicted_ms=ms) for b, ms in _PREDICTED.items())
    singles = [Single("near", near, True), Single("far", far, True), Single("partly", None, False)]
    assert anchor_of(mix, singles) is near
    assert anchor_of(mix, singles, {near.digest}) is mix
    assert anchor_of(mix, singles, {near.digest, mix.digest}) is far
    assert anchor_of(mix, singles, {near.digest, mix.digest, far.digest}) is None


def test_beside_nothing_near_it_is_its_own_measure(graph: Graph) -> None:
    alone = _times((1, 1, 99), (99, 99, 1))
    machine = _Machine(graph, alone, alone)
    result, *_ = machine.refine()
    assert machine.runs[0].keys() == {MIX}
    assert result.placement.predicted_ms == pytest.approx(3.0)


def test_only_backends_that_come_near_are_run_beside_it(graph: Graph) -> None:
    alone = _times((1, 1, 2), (9, 9, 1))
    machine = _Machine(graph, alone, alone)
    machine.refine()
    assert machine.runs[0].keys() == {MIX, "anchor"}
    near = _times((1, 2, 1.5), (1.5, 1, 1))
    machine = _Machine(graph, near, near)
    machine.refine()
    assert machine.runs[0].keys() == {MIX, "anchor", "left"}


def test_a_second_run_that_fails_leaves_the_first_answer_at_its_true_price(graph: Graph) -> None:
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): 3.0}, fails={1: MIX})
    result, *_ = machine.refine()
    assert [g.backend for g in result.placement.groups] == ["left", "right", "right"]
    assert result.placement.predicted_ms == pytest.approx(5.0)
    assert len(machine.runs) == 2


def test_a_backend_alone_that_proves_to_be_the_best_is_the_answer(graph: Graph) -> None:
    """Left's kernels are much slower in place than alone, whatever runs before them."""
    alone = _times((1, 2, 5), (2, 2.5, 1))
    machine = _Machine(graph, alone, {**alone, ("left", "Relu"): 6.0, ("left", "Neg"): 6.0})
    result, *_ = machine.refine()
    assert {g.backend for g in result.placement.groups} == {"right"}
    assert result.placement.predicted_ms == pytest.approx(5.5)
    assert result.placement.optimal
    assert len(machine.runs) == 1, "it ran beside the mix"


def test_six_mixes_are_run_at_most(parse: Parse) -> None:
    """Each turn shows one kernel to be slow, of which there is always one more."""
    ops = ["Relu", "Neg", "Abs", "Exp", "Sin", "Cos", "Tan", "Sqrt", "Erf"]
    chain = " ".join(f"[n{i}] v{i + 1} = {op}(v{i})" for i, op in enumerate(ops))
    graph = from_model(parse(f"(float[8] v0) => (float v{len(ops)}) {{ {chain} }}"))
    alone = {("left", op): 1.0 for op in ops} | {("right", op): 1.5 for op in ops}
    machine = _Machine(graph, alone, alone)
    true = dict(alone)

    def slower(
        title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        machine.true = {**true, ("left", ops[len(machine.runs)]): 9.0}
        return _Machine._compare(machine, title, placements, timed)

    machine.compare = slower
    result, *_ = machine.refine()
    assert len(machine.runs) == len(result.history["turns"]) == TURNS == 6


@pytest.mark.parametrize(("remembers", "asked"), [(True, 1), (False, 2)])
def test_the_best_of_what_was_seen_is_run_before_all_is_searched_again(
    graph: Graph, remembers: bool, asked: int
) -> None:
    alone = _times((1.0, 2.0, 1.0), (1.4, 1.0, 1.2))
    true = {**alone, ("left", "Abs"): 3.0, ("right", "Neg"): 3.0, ("right", "Abs"): 1.3}
    machine = _Machine(graph, alone, true, remembers=remembers)
    result, *_ = machine.refine()
    assert [g.backend for g in machine.runs[0][MIX].groups] == ["left", "right", "left"]
    assert [g.backend for g in result.placement.groups] == ["left", "left", "right"]
    assert (len(machine.runs), machine.asked) == (2, asked)


@pytest.mark.parametrize(("seen_ms", "runs"), [(6.9, 2), (6.98, 1)])
def test_what_gains_less_than_one_percent_is_not_run(graph: Graph, seen_ms: float, runs: int) -> None:
    """The mix takes 7 ms, left alone 6.9, and right alone 6.7."""
    alone = _times((1.0, 2.0, 1.0), (1.4, 1.0, 1.2))
    true = {**alone, ("left", "Abs"): 3.0, ("left", "Neg"): 2.9, ("right", "Neg"): 3.0, ("right", "Abs"): 2.3}
    machine = _Machine(graph, alone, true, remembers=True, seen_ms=seen_ms, searches=1)
    machine.refine()
    assert len(machine.runs) == runs


@pytest.mark.parametrize(("seen_ms", "runs"), [(6.2, 2), (6.4, 1)])
def test_what_is_clearly_slower_than_a_backend_alone_is_not_run(
    graph: Graph, seen_ms: float, runs: int
) -> None:
    """The mix takes 7 ms, and right alone 6."""
    alone = _times((1.0, 2.0, 1.0), (1.4, 1.0, 1.2))
    true = {**alone, ("left", "Abs"): 3.0, ("right", "Neg"): 3.0, ("right", "Abs"): 1.6}
    machine = _Machine(graph, alone, true, remembers=True, seen_ms=seen_ms, searches=1)
    machine.refine()
    assert len(machine.runs) == runs


@pytest.mark.parametrize(("neg_ms", "found"), [(2.1, ["left", "right", "left"]), (2.3, ["left"] * 3)])
def test_a_backend_alone_is_the_answer_where_it_is_clearly_faster(
    graph: Graph, neg_ms: float, found: list[str]
) -> None:
    """Of two that are as good as equal the mix is compared once more, by who chooses."""
    alone = _times((1.0, 2.0, 1.0), (1.4, 1.0, 1.2))
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): neg_ms})
    result, *_ = machine.refine()
    assert [g.backend for g in result.placement.groups] == found


def test_a_search_that_finds_nothing_leaves_what_was_run(graph: Graph) -> None:
    alone = _times((1, 2, 5), (4, 1, 1))
    machine = _Machine(graph, alone, {**alone, ("right", "Neg"): 3.0}, searches=1)
    result, *_ = machine.refine()
    assert [g.backend for g in result.placement.groups] == ["left", "right", "right"]
    assert result.placement.predicted_ms == pytest.approx(5.0)
    assert len(machine.runs) == 1
