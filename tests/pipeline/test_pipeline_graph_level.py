"""The graph level: gains that no sum of measured costs shows, and graph libraries that misbehave."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import children

from collage_core import CollageError, Constraints, Optimization, Placement, Target, optimize
from collage_core.costs.record import CostRecord
from collage_core.pipeline.effort import NORMAL, THOROUGH
from collage_core.pipeline.searches import search_named
from collage_core.plugins import PLUGINS_VARIABLE, default_registry
from collage_core.report.summary import optimization_json
from collage_core.report.text import explain_text
from collage_core.search import Evolution, GraphLevelSearch, SearchResult, SearchTask

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_TARGET = Target("cpu", 1)
_NO_REFERENCE = Constraints(excluded=[("reference", None)])
_SMALL = GraphLevelSearch(Evolution(population=6, patience=2))
_CHAIN = "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Abs(b) }"


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backends and the search of plugins/ are installed, here and in workers."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "pipeline_library_backends")
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()


def _optimize(parse: Parse, text: str, costs: Path, level: str = "graph", **options: Any) -> Optimization:
    return optimize(
        parse(text),
        backends=options.pop("backends", ["operators", "pairs"]),
        target=_TARGET,
        costs=costs,
        searcher=_SMALL if level == "graph" else search_named(level, default_registry()),
        rounds=6,  # three sittings: fewer would tell nothing
        constraints=options.pop("constraints", _NO_REFERENCE),
        **options,
    )


def _groups(placed: Optimization) -> list[tuple[str, int]]:
    return [(g.backend, len(g.nodes)) for g in placed.placement.groups]


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first search of the chain has measured serves the second one."""
    return tmp_path_factory.mktemp("graph_level") / "c.sqlite"


@pytest.mark.ci
@pytest.mark.alone
def test_it_finds_the_gain_between_kernels_that_the_op_level_misses(parse: Parse, costs: Path) -> None:
    op_level = _optimize(parse, _CHAIN, costs, "op", effort=THOROUGH)
    assert _groups(op_level) == [("operators", 1)] * 3
    found = _optimize(parse, _CHAIN, costs, effort=THOROUGH)
    assert found.mix == op_level.placement
    assert found.chosen == "graph"
    assert sorted(_groups(found)) == [("operators", 1), ("pairs", 2)]
    assert found.placement.predicted_ms == pytest.approx(8, rel=0.3)

    report = json.loads(json.dumps(optimization_json(found, "m.onnx")))
    second = report["second_level"]
    assert second["op_level_ms"] == pytest.approx(12, rel=0.3)
    assert second["best_ms"] == pytest.approx(8, rel=0.3)
    assert second["libraries"] == ["pairs"]
    tries = second["evaluations"]
    assert {len(t["genome"]) for t in tries} == {3}
    assert min(t["median_ms"] for t in tries if t["median_ms"]) == pytest.approx(second["best_ms"], rel=0.3)
    assert "placements tried" in explain_text(report)
    # The op level's own answer is what "operators" makes of it alone.
    assert {"collage", "operators", "pairs"} <= report["contenders"].keys()


@pytest.mark.slow
def test_from_recorded_costs_a_seed_gives_the_same_search(parse: Parse, costs: Path) -> None:
    first = _optimize(parse, _CHAIN, costs, seed=3, budget_s=math.inf)
    again = _optimize(parse, _CHAIN, costs, seed=3, budget_s=math.inf)
    assert first.second_level is not None
    assert again.second_level is not None
    assert again.second_level.history == first.second_level.history
    assert again.placement == first.placement
    assert again.costs.measured == 0
    assert again.comparison is not None
    assert not again.comparison.measured


@pytest.mark.slow
def test_an_operator_that_the_library_lacks_costs_only_that_one(parse: Parse, tmp_path: Path) -> None:
    text = "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Exp(b) }"
    found = _optimize(parse, text, tmp_path / "c.sqlite")
    assert _groups(found) == [("pairs", 2), ("operators", 1)]
    report = optimization_json(found, "m.onnx")
    assert report["declined"]["pairs"] == ["c: it has no Exp"]


@pytest.mark.slow
def test_a_library_that_dies_when_asked_costs_only_that_operator(parse: Parse, tmp_path: Path) -> None:
    text = "(float[8] x) => (float y) { [a] a = Tan(x) [b] b = Neg(a) [c] y = Abs(b) }"
    found = _optimize(parse, text, tmp_path / "c.sqlite")
    assert _groups(found) == [("operators", 1), ("pairs", 2)]
    (said,) = optimization_json(found, "m.onnx")["declined"]["pairs"]
    assert said.startswith("a: crashed: the worker process died: killed by SIGABRT")


@pytest.mark.slow
def test_a_library_that_dies_building_costs_only_those_groups(parse: Parse, tmp_path: Path) -> None:
    text = "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Cos(b) }"
    found = _optimize(parse, text, tmp_path / "c.sqlite")
    assert _groups(found) == [("pairs", 2), ("operators", 1)]
    died = [r.reason for r in found.costs.kernels.values() if "SIGABRT" in (r.reason or "")]
    assert died, "what other backends run as one, and the whole, are built where they are measured"
    tries = optimization_json(found, "m.onnx")["second_level"]["evaluations"]
    assert {t["genome"][2] for t in tries if t["median_ms"]} == {"0"}
    assert {t["genome"][2] for t in tries if t["reason"]} == {"1"}


@pytest.mark.slow
@pytest.mark.alone
def test_a_library_that_takes_too_long_to_build_costs_only_that_group(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CANDIDATE_LIMIT_S", "12")
    text = "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Sin(b) }"
    found = _optimize(parse, text, tmp_path / "c.sqlite", effort=THOROUGH)
    assert _groups(found) == [("pairs", 2), ("operators", 1)]
    tries = optimization_json(found, "m.onnx")["second_level"]["evaluations"]
    assert any("no answer within 12 s" in (t["reason"] or "") for t in tries)


@pytest.mark.slow
@pytest.mark.alone
def test_a_library_that_takes_too_long_to_open_is_opened_once(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CANDIDATE_LIMIT_S", "5")
    text = "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Sin(b) }"
    start_s = time.monotonic()
    found = _optimize(parse, text, tmp_path / "c.sqlite", "op", effort=NORMAL, budget_s=40)
    assert time.monotonic() - start_s < 45
    assert _groups(found) == [("operators", 1)] * 3
    assert found.rejected
    assert all(re.fullmatch(r"pairs(\+reference)?: no answer within [\d.]+ s", r) for r in found.rejected), (
        found.rejected
    )


@pytest.mark.slow
def test_constraints_hold_at_the_graph_level_too(parse: Parse, tmp_path: Path) -> None:
    for constraints in (
        Constraints(pins={"a": "operators"}, excluded=[("reference", None)]),
        Constraints(excluded=[("pairs", "Relu"), ("reference", None)]),
    ):
        found = _optimize(parse, _CHAIN, tmp_path / "c.sqlite", constraints=constraints)
        assert _groups(found) == [("operators", 1), ("pairs", 2)]


@pytest.mark.ci
@pytest.mark.alone
def test_a_library_alone_gets_the_whole_graph(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse, _CHAIN, tmp_path / "c.sqlite", "op", backends=["pairs"])
    (alone,) = (s for s in found.singles if s.backend == "pairs")
    assert alone.alone
    assert alone.placement is not None
    # As a whole 21 ms; one by one it would be three times 6 ms, which is what the op level finds.
    assert len(alone.placement.groups) == 1
    assert len(found.mix.groups) == 3
    assert alone.placement.predicted_ms == pytest.approx(21, rel=0.5)
    assert found.mix.predicted_ms == pytest.approx(18, rel=0.5)


@pytest.mark.slow
def test_a_plugin_brings_a_search(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse, _CHAIN, tmp_path / "c.sqlite", "backwards")
    assert found.second_level is not None
    assert found.second_level.history["first_ms"] == pytest.approx(12, rel=0.3)
    assert found.placement == found.mix
    with pytest.raises(CollageError, match="unknown search 'sideways'; installed: op, graph, backwards"):
        search_named("sideways", default_registry())


class _Watched(GraphLevelSearch):
    """Ends after 200 measured placements, and notes how much memory is resident after each batch."""

    def __init__(self) -> None:
        super().__init__(Evolution(patience=1000))
        self.resident_mib: list[tuple[int, float]] = []

    def search(self, task: SearchTask) -> SearchResult:
        measure, done = task.measure, 0
        assert measure is not None

        def watched(placements: Sequence[Placement]) -> Sequence[CostRecord]:
            nonlocal done
            if done >= 200:
                raise KeyboardInterrupt
            done += len(placements)
            records = measure(placements)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.resident_mib.append((done, pages * os.sysconf("SC_PAGE_SIZE") / 2**20))
            return records

        return super().search(replace(task, measure=watched))


@pytest.mark.slow
def test_two_hundred_evaluations_leave_nothing_behind(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_PACE", "0.1")
    ops = "".join(f"[n{i}] v{i + 1} = Neg(v{i})" for i in range(12))
    others = {*children(os.getpid())}  # tests before this one in the same process may have left some
    search = _Watched()
    optimize(
        parse(f"(float[8] v0) => (float v12) {{ {ops} }}"),
        backends=["operators", "pairs"],
        target=_TARGET,
        costs=tmp_path / "c.sqlite",
        searcher=search,
        constraints=_NO_REFERENCE,
        effort=THOROUGH,
        rounds=2,
    )
    assert search.resident_mib[-1][0] >= 200
    early = next(mib for done, mib in search.resident_mib if done >= 50)
    # Of each its turns are kept, some 40 KiB; what a process takes would be many times that.
    assert search.resident_mib[-1][1] < early + 15
    assert {*children(os.getpid())} <= others
