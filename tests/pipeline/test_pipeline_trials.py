"""Trials: records of different moments compare, and what was measured is not measured again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simulated_sittings import sittings_of_ms

from collage_core import CostDatabase, Graph, Group, Placement, Subgraph, Target, Workspace, plain_variant
from collage_core.costs.samples import Samples
from collage_core.costs.seats import Contender, Outcome
from collage_core.ir import NodeSet, from_model
from collage_core.ir.passes import normalise
from collage_core.measuring.machine import Machine as Measurer
from collage_core.measuring.trials import Trials
from collage_core.plugins import PLUGINS_VARIABLE, Registry, default_registry
from collage_core.reference import evaluate

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv(PLUGINS_VARIABLE, "pipeline_library_backends")
    default_registry.cache_clear()
    yield default_registry()
    default_registry.cache_clear()


@pytest.fixture
def graph(parse: Parse) -> Graph:
    return normalise(from_model(parse("(float[8] x) => (float y) { [a] a = Relu(x) [b] y = Neg(a) }")))


def _placement(graph: Graph, *backends: str) -> Placement:
    groups = [
        Group(backend, (n.id,), plain_variant(Subgraph(graph, NodeSet([n.id]))))
        for backend, n in zip(backends, graph.nodes, strict=True)
    ]
    return Placement(tuple(groups), (), Target("cpu", 1))


class _Machine:
    """In place of `measure_rounds`: what each placement takes, in order of the batches; None fails."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Any]) -> None:
        self.batches: list[dict[str, float | None]] = []
        self.asked: list[list[str]] = []
        self._outputs = evaluate(graph, inputs)

    def __call__(self, contenders: Sequence[Contender], *_: object, **__: object) -> dict[str, Outcome]:
        self.asked.append([c.name for c in contenders])
        times = self.batches.pop(0)
        outcomes = {}
        for c in contenders:
            ms = times["anchor" if c.name == "anchor" else "other"]
            samples = Samples((ms, ms, ms)) if ms is not None else None
            reason = None if samples else "the worker process died"
            sittings = sittings_of_ms([samples.times_ms]) if samples else ()
            outcomes[c.name] = Outcome(samples, self._outputs, reason, sittings=sittings)
        return outcomes


@pytest.fixture
def machine(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Machine, Workspace]]:
    with Workspace(graph) as workspace:
        machine = _Machine(graph, workspace.inputs)
        monkeypatch.setattr("collage_core.measuring.machine.measure_rounds", machine)
        yield machine, workspace


def _on(database: CostDatabase, registry: Registry) -> Measurer:
    return Measurer.of(database, (), registry=registry)


def test_times_are_those_of_the_first_batch(
    graph: Graph, machine: tuple[_Machine, Workspace], registry: Registry, tmp_path: Path
) -> None:
    played, workspace = machine
    anchor, one, two = (
        _placement(graph, *b)
        for b in (("operators", "operators"), ("pairs", "operators"), ("operators", "pairs"))
    )
    played.batches = [
        {"anchor": 10.0, "other": 11.0},
        {"anchor": 10.0, "other": 20.0},
        {"anchor": 20.0, "other": 20.0},
    ]
    with CostDatabase(tmp_path / "c.sqlite") as database:
        trials = Trials(_on(database, registry), workspace, anchor)
        assert [r.median_ms for r in trials.measure([anchor])] == [10.0]
        assert played.asked == [["anchor", anchor.digest]], "beside itself, rather than alone"
        assert [r.median_ms for r in trials.measure([one, anchor])] == [20.0, 10.0]
        (record,) = trials.measure([two])  # the machine has become half as fast
        assert record.median_ms == 10.0
        assert record.details["taken_ms"] == record.details["anchor_ms"] == 20.0
        # It does just what the anchor does, but in another process.
        assert record.uncertainty_ms == pytest.approx(0.02 * 10.0)
        assert trials.measure([anchor])[0].uncertainty_ms == 0.0
        assert trials.measured == 3

        again = Trials(_on(database, registry), workspace, anchor)
        assert [r.median_ms for r in again.measure([two, one, anchor, two])] == [10.0, 20.0, 10.0, 10.0]
        assert (again.measured, again.cached) == (0, 3)
        # Beside another anchor it is another measurement.
        other = Trials(_on(database, registry), workspace, one)
        played.batches = [{"anchor": 5.0, "other": 4.0}]
        assert [r.median_ms for r in other.measure([two])] == [4.0]


def test_failures_are_kept_but_none_of_a_batch_whose_anchor_fails(
    graph: Graph, machine: tuple[_Machine, Workspace], registry: Registry, tmp_path: Path
) -> None:
    played, workspace = machine
    anchor = _placement(graph, "operators", "operators")
    other = _placement(graph, "pairs", "operators")
    with CostDatabase(tmp_path / "c.sqlite") as database:
        trials = Trials(_on(database, registry), workspace, anchor)
        played.batches = [{"anchor": None, "other": 3.0}, {"anchor": 5.0, "other": None}]
        assert trials.measure([other])[0].median_ms == 3.0
        assert len(database) == 0
        assert trials.measure([other])[0].status == "failed"
        assert trials.measure([other])[0].reason == "the worker process died"
        assert len(played.asked) == 2


def test_large_models_are_measured_a_few_at_a_time(
    graph: Graph,
    machine: tuple[_Machine, Workspace],
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played, workspace = machine
    anchor = _placement(graph, "operators", "operators")
    others = [
        replace(_placement(graph, *b), method=f"{b}")
        for b in (("pairs", "operators"), ("operators", "pairs"), ("pairs", "pairs"))
    ]
    monkeypatch.setattr("collage_core.measuring.trials._MOST_BYTES", 0)
    played.batches = [{"anchor": 1.0, "other": 2.0}] * 3
    with CostDatabase(tmp_path / "c.sqlite") as database:
        Trials(_on(database, registry), workspace, anchor).measure(others)
    assert [len(names) for names in played.asked] == [2, 2, 2]
