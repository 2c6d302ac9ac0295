"""Bounded measuring ends where full measuring does, on generated problems whose costs are recorded; and what
the bounds and guesses are drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
import pytest
from bounded_problems import FAILED, KINDS, TARGET, Bounds, Problem, contents_of, ms_of, record_of
from onnx import TensorProto, helper

from collage_core import plain_variant
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.errors import PlacementError
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.measuring import calibration
from collage_core.measuring.bounding import search_placement
from collage_core.measuring.costing import Costs
from collage_core.measuring.in_place import kernel_key
from collage_core.pipeline.singles import measure_singles, single
from collage_core.search import OpLevelSearch
from collage_core.search.searcher import SearchResult, SearchTask

pytestmark = pytest.mark.ci

_PROBLEMS, _ORDINARY = 500, 75

_SEEDS = [
    pytest.param(range(_ORDINARY), id="some"),
    pytest.param(range(_ORDINARY, _PROBLEMS), id="many", marks=pytest.mark.ci),
]


@pytest.mark.parametrize("seeds", _SEEDS)
def test_bounded_measuring_ends_at_the_placement_that_full_measuring_finds(seeds: range) -> None:
    """Bounds are anything up to the cost itself. Some two thirds of the candidates are never measured."""
    offered = measured = 0
    for seed in seeds:
        problem = Problem.generated(seed)
        full = problem.full()
        assert full.placement.optimal
        with problem.known() as known:
            found = known.search()
            counts = known.ledger.counts()
        assert ms_of(found) == pytest.approx(ms_of(full)), seed
        assert ms_of(found) == pytest.approx(
            ms_of(replace(found, placement=known.priced(found.placement)))
        ), seed
        assert not known.costs.kernel_bounds_ms
        assert not known.costs.converter_bounds_ms
        asked = problem.recorded
        assert len(set(asked.kernels)) == len(asked.kernels), f"{seed}: nothing is measured twice"
        assert len(set(asked.converters)) == len(asked.converters), f"{seed}: nothing is measured twice"
        assert counts["measured"] == len(asked.kernels) + len(asked.converters)
        assert counts["measured"] + counts["bounded_out"] == counts["offered"]
        assert set(asked.kernels) == known.costs.kernels.keys()
        offered += counts["offered"]
        measured += counts["measured"]
    assert measured < 0.45 * offered


@pytest.mark.parametrize("seeds", [range(25)])
def test_nothing_is_measured_that_no_placement_as_good_could_hold(seeds: range) -> None:
    """Held against a search of its own for each kernel that was measured."""
    for seed in seeds:
        problem = Problem.generated(seed)
        best_ms = ms_of(problem.full())
        with problem.known() as known:
            bounds = Costs({}, {}, transitions=problem.truth.transitions)
            assert known.estimates is not None
            known.estimates.bound(bounds, list(known.ledger.unknown_converters))
            known.search()
        least_ms = {
            kernel: min(
                _least_ms_with(c, problem, bounds)
                for c in problem.candidates.candidates
                if c.kernel_key == kernel
            )
            for kernel in problem.recorded.kernels
        }
        assert all(ms <= best_ms * (1 + 1e-9) for ms in least_ms.values()), seed


def _least_ms_with(candidate: Candidate, problem: Problem, costs: Costs) -> float:
    nodes = candidate.subgraph.node_set
    rest = tuple(
        c
        for c in problem.candidates.candidates
        if c is candidate or not set(c.subgraph.node_set) & set(nodes)
    )
    restricted = replace(problem.candidates, candidates=rest)
    try:
        return ms_of(search_placement(restricted, costs, OpLevelSearch()))
    except PlacementError:
        return math.inf


def test_where_bounds_are_costs_only_the_best_placement_is_measured() -> None:
    for seed in range(40):
        problem = Problem.generated(seed, lambda rng: 1.0)
        problem.truth = _without_failures(problem.truth)
        with problem.known() as known:
            found = known.search()
        assert found.placement.optimal
        assert (set(problem.recorded.kernels), set(problem.recorded.converters)) == contents_of(
            problem.candidates.graph, found.placement
        ), seed


def _without_failures(truth: Costs) -> Costs:
    def mended(record: CostRecord) -> CostRecord:
        return record if record.ok else record_of(1.0)

    return Costs(
        {k: mended(r) for k, r in truth.kernels.items()},
        {c: {b: mended(r) for b, r in records.items()} for c, records in truth.conversion_records.items()},
    )


def test_a_gap_ends_it_sooner_and_within_it() -> None:
    measured = dict.fromkeys((0.0, 0.05, 0.3), 0)
    for seed in range(25):
        for gap in measured:
            problem = Problem.generated(seed, lambda rng: rng.uniform(0.6, 1.0))
            best_ms = ms_of(problem.full())
            with problem.known(gap) as known:
                found = known.search()
            assert best_ms <= ms_of(found) * (1 + 1e-9)
            assert ms_of(found) <= best_ms * (1.0 + gap) * (1 + 1e-9), (seed, gap)
            solution = found.solution
            assert solution is not None
            assert solution.lower_bound_ms is not None
            assert solution.lower_bound_ms <= best_ms * (1 + 1e-9), "what is said to be impossible is"
            assert found.placement.optimal <= (ms_of(found) <= best_ms * (1 + 1e-9))
            measured[gap] += len(problem.recorded.kernels)
    assert measured[0.3] < measured[0.05] < measured[0.0]


def _alone(graph: Graph, costs_ms: Mapping[str, float]) -> CandidateSet:
    """One node, and who runs it."""
    subgraph = Subgraph(graph, graph.all_nodes)
    candidates = tuple(Candidate(subgraph, b, plain_variant(subgraph), "pattern") for b in costs_ms)
    return CandidateSet(graph, TARGET, candidates, {}, KINDS)


def _one_node() -> Graph:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "n")]
    x, y = ([helper.make_tensor_value_info(v, TensorProto.FLOAT, [8])] for v in "xy")
    made = helper.make_graph(nodes, "one", x, y)
    return from_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def _found(
    costs_ms: Mapping[str, float], bounds_ms: Mapping[str, float], gap: float = 0.0, known: Sequence[str] = ()
) -> tuple[SearchResult, list[str]]:
    """Of one node what the search finds, and which backends were measured. known: backends whose cost is."""
    candidates = _alone(_one_node(), costs_ms)
    costs = {c.kernel_key: costs_ms[c.backend] for c in candidates.candidates}
    problem = Problem(candidates, Costs({k: record_of(ms) for k, ms in costs.items()}, {}), lambda: 1.0)
    with problem.known(gap) as asked:
        asked.ledger.measure_kernels("known before", [k for k in costs if k[2] in known])
        problem.recorded.kernels.clear()
        bounds: Any = Bounds({k: bounds_ms[k[2]] for k in costs}, {})
        asked.estimates = bounds
        found = asked.search()
        return found, [backend for _, _, backend in problem.recorded.kernels]


@pytest.mark.parametrize(
    ("red_ms", "found_ms", "measured"),
    [(1.29, 1.29, ["red"]), (1.31, 1.0, ["red", "green"]), (1.42, 1.0, ["red", "green"])],
)
def test_a_gap_is_of_the_bound(red_ms: float, found_ms: float, measured: list[str]) -> None:
    """Red looks better and is not; green will not take less than 1 ms, which 30 % more is enough for."""
    found, asked = _found({"red": red_ms, "green": 1.0}, {"red": 0.9, "green": 1.0}, gap=0.3)
    assert (ms_of(found), asked) == (found_ms, measured)


def test_the_reference_is_for_what_nobody_else_can_run_here_too() -> None:
    """Its cost is known from before, and a few runs were fast."""
    found, asked = _found({"red": 2.0, "ref": 1.0}, {"red": 1.5, "ref": 1.0}, known=["ref"])
    assert (ms_of(found), asked) == (2.0, ["red"])


def test_what_is_proven_is_said_to_be() -> None:
    """Without a gap the best of what is measured is the best there is, whatever else has a bound."""
    for seed in range(25):
        problem = Problem.generated(seed)
        with problem.known() as known:
            found = known.search()
        assert _is_proven(found), seed
    for names in (("red", "green"), ("green", "red")):
        found, asked = _found(dict.fromkeys(names, 1.0), dict.fromkeys(names, 1.0), known=["red"])
        assert (asked, _is_proven(found)) == ([], True), "what cannot be better need not be measured"


def _is_proven(found: SearchResult) -> bool:
    solution = found.solution
    assert solution is not None
    assert found.placement.optimal == solution.optimal
    return solution.optimal and solution.lower_bound_ms == pytest.approx(ms_of(found))


def test_where_time_is_short_the_likely_best_is_measured_first() -> None:
    """Green's bound is the lower one, and it does not come near that."""
    costs_ms = {"red": 1.0, "green": 3.0}
    candidates = _alone(_one_node(), costs_ms)
    costs = {c.kernel_key: costs_ms[c.backend] for c in candidates.candidates}
    truth = Costs({k: record_of(ms) for k, ms in costs.items()}, {})
    for guesses_ms, first in (({}, "green"), (costs, "red")):
        problem = Problem(candidates, truth, lambda: 1.0)
        with problem.known(time_is_over=lambda p=problem: bool(p.recorded.kernels)) as known:  # type: ignore[misc]
            estimates: Any = Bounds({k: 0.1 if k[2] == "green" else 0.9 for k in costs}, {}, guesses_ms)
            known.estimates = estimates
            found = known.search()
        assert [backend for _, _, backend in problem.recorded.kernels] == [first]
        assert ms_of(found) == costs_ms[first]


def test_what_needs_little_to_be_the_best_is_measured_before_what_may_be_anything() -> None:
    """Red is guessed to be the best. A fifth less and it were green. Blue's bound says nothing."""
    costs_ms = {"red": 1.0, "green": 0.9, "blue": 3.0}
    candidates = _alone(_one_node(), costs_ms)
    keys = {c.backend: c.kernel_key for c in candidates.candidates}
    truth = Costs({keys[b]: record_of(ms) for b, ms in costs_ms.items()}, {})
    problem = Problem(candidates, truth, lambda: 1.0)
    guesses_ms = dict(zip(keys.values(), (1.0, 1.2, 3.0), strict=True))
    with problem.known() as known:
        bounds_ms = dict(zip(keys.values(), (0.5, 0.4, 0.1), strict=True))
        estimates: Any = Bounds(bounds_ms, {}, guesses_ms)
        known.estimates = estimates
        assert ms_of(known.search()) == 0.9
    assert [backend for _, _, backend in problem.recorded.kernels] == ["red", "green", "blue"]


def test_what_may_gain_the_most_is_measured_first() -> None:
    """Green is guessed to take longer than red everywhere: 1 % on the light node, a third on the others."""
    ops = {"heaviest": "Relu", "heavier": "Neg", "heavy": "Abs", "light": "Exp"}
    weights_ms = dict(zip(ops, (100.0, 3.5, 1.8, 0.1), strict=True))
    chain = " ".join(f"[{n}] {n} = {op}({x})" for (n, op), x in zip(ops.items(), ("x", *ops), strict=False))
    text = f'<ir_version: 10, opset_import: ["": 20]> g (float[8] x) => (float[8] light) {{ {chain} }}'
    graph = from_model(onnx.parser.parse_model(text))
    offered, guesses_ms = [], {}
    for node in reversed(graph.nodes):
        alone = Subgraph(graph, [node.id])
        for backend, factor in (("red", 1.0), ("green", 1.01 if node.name == "light" else 1.3)):
            offered.append(Candidate(alone, backend, plain_variant(alone), "pattern"))
            guesses_ms[offered[-1].kernel_key] = factor * weights_ms[node.name]
    truth = Costs({key: record_of(ms) for key, ms in guesses_ms.items()}, {})
    problem = Problem(CandidateSet(graph, TARGET, tuple(offered), {}, KINDS), truth, lambda: 1.0)
    with problem.known() as known:
        bounds: Any = Bounds(dict.fromkeys(guesses_ms, 0.0), {}, guesses_ms)
        known.estimates = bounds
        known.search()
    name_of = {c.kernel_key: (c.backend, c.subgraph.nodes[0].name) for c in offered}
    order = [name_of[key] for key in problem.recorded.kernels]
    assert {backend for backend, _ in order[:4]} == {"red"}
    assert order[4:] == [("green", name) for name in ops]


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_when_time_is_over_there_is_a_measured_placement(after: int) -> None:
    """As good as anything of what was measured until then, or the first that there is."""
    for seed in range(30):
        problem = Problem.generated(seed)
        with problem.known(time_is_over=lambda p=problem: len(p.recorded.kernels) >= after) as known:  # type: ignore[misc]
            found = known.search()
            kernels, converters = contents_of(problem.candidates.graph, found.placement)
            assert kernels <= set(problem.recorded.kernels), seed
            assert converters <= set(problem.recorded.converters), seed
            of_measured = search_placement(problem.candidates, known.costs, OpLevelSearch())
            assert ms_of(found) == pytest.approx(ms_of(of_measured))


@pytest.mark.parametrize("above", [1.0, 2.0])
def test_when_time_is_over_and_there_is_an_answer_nothing_is_measured(above: float) -> None:
    """What is most likely the best is told, and that it is not proven, be the guesses the bounds."""
    for seed in range(30):
        problem = Problem.generated(seed)
        with problem.known(time_is_over=lambda: True) as known:
            bounds = problem.bounds()
            guesses_ms = {k: above * ms for k, ms in bounds.kernels_ms.items()}
            known.estimates = replace(bounds, guesses_ms=guesses_ms)
            known.is_answered = lambda: True
            found = known.search()
            assert not problem.recorded.kernels
            assert found.placement.digest == known.guess().placement.digest
            assert found.solution is not None
            assert not found.placement.optimal
            assert not found.solution.optimal


def test_when_time_is_over_nothing_is_guessed_twice() -> None:
    asked: list[str] = []

    class Counted(OpLevelSearch):
        def search(self, task: SearchTask) -> SearchResult:
            asked.append("")
            return super().search(task)

    problem = Problem.generated(3)
    with problem.known(time_is_over=lambda: True) as known:
        bounds = problem.bounds()
        known.estimates = replace(bounds, guesses_ms=bounds.kernels_ms)
        known.searcher = Counted()
        measure_singles([*KINDS], known)
        assert not asked, "it would only be done to measure"
        placed = single("ref", known)
        assert placed.placement is not None
        assert len(asked) == 1
    assert not problem.recorded.kernels


def test_where_nobody_runs_a_node_all_that_might_was_tried() -> None:
    for seed in range(20):
        problem = Problem.generated(seed)
        node = problem.candidates.graph.nodes[-1].id
        doomed = {c.kernel_key for c in problem.candidates.candidates if node in c.subgraph.node_set}
        kernels = {k: FAILED if k in doomed else r for k, r in problem.truth.kernels.items()}
        problem.truth = replace(problem.truth, kernels=kernels)
        with problem.known() as known, pytest.raises(PlacementError):
            known.search()
        alone = {c.kernel_key for c in problem.candidates.candidates if set(c.subgraph.node_set) == {node}}
        assert alone <= set(problem.recorded.kernels), seed


def test_a_second_search_measures_nothing() -> None:
    for seed in range(20):
        problem = Problem.generated(seed)
        with problem.known() as known:
            first = known.search()
            measured = known.ledger.counts()["measured"]
            assert known.search().placement == first.placement
            assert known.ledger.counts()["measured"] == measured


def test_calibration_places_what_runs_and_has_been_measured() -> None:
    """A kernel that was guessed to run and fails is out, and another one is looked for."""
    failed = 0
    for seed in range(2 * _ORDINARY):
        problem = Problem.generated(seed)
        guesses: Any = replace(problem.bounds(), guesses_ms=dict.fromkeys(problem.truth.kernels, 1.0))
        with problem.known() as known:
            known.estimates = guesses
            placements = calibration._placements(known, ["red", "green", "blue"])
            failed += sum(not r.ok for r in known.costs.kernels.values())
        for placement in placements:
            kernels, converters = contents_of(problem.candidates.graph, placement)
            assert all(problem.truth.kernels[k].ok for k in kernels)
            assert all(problem.truth.conversion_records[c][b].ok for c, b in converters)
            assert placement.predicted_ms is not None
    assert failed > _ORDINARY


def test_what_was_seen_as_a_whole_need_not_be_measured() -> None:
    """It is at what it took; where time is over, it is an answer."""
    problem = next(p for p in map(Problem.generated, range(50)) if not p.full().placement.conversions)
    best, graph = problem.full().placement, problem.candidates.graph
    with problem.known(time_is_over=lambda: True) as known:
        known.seen_ms.update({kernel_key(graph, g): g.cost_ms or 0.0 for g in best.groups})
        assert not known.measure(best, whatever=True, seen=False)
        found = known.search()
        assert found.placement.digest == best.digest
        assert ms_of(found) == pytest.approx(best.predicted_ms)
        assert known.unknown_kernels(best) == len(best.groups)
        assert known.measure(best, whatever=True)
        assert not known.unknown_kernels(best)
