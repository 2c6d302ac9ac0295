"""Comparisons: how their rounds are laid out, and when they are recalled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simulated_sittings import sittings_of_ms

from collage_core import CostDatabase, Target
from collage_core.costs.ratio import sittings_of
from collage_core.costs.rounds import MOST_ROUNDS, Contender, Outcome
from collage_core.costs.samples import Samples
from collage_core.costs.sittings import Sitting, Turn
from collage_core.ir import from_model
from collage_core.pipeline.comparison import Comparison, Entrant, compare
from collage_core.pipeline.progress import Silent
from collage_core.pipeline.workspace import Workspace
from collage_core.runtime.session import open_placement

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse


_NOISE = ((1.0, 1.0), (1.5, 1.5), (2.0, 1.0))


class _Machine:
    """In place of `measure_rounds`: whoever is in `failing` fails, for want of a process where the machine is
    `full`; the others take 1 ms.
    """

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.times = 1
        self.full = False
        self.sittings: list[int] = []
        self.most_rounds: list[int] = []
        self.went_on: list[set[str]] = []

    def __call__(
        self,
        contenders: Sequence[Contender],
        rounds: int,
        runs: int,
        *,
        sittings: int,
        most_rounds: int,
        go_on: Callable[[Mapping[str, Sequence[Sitting]]], set[str]] | None,
        **_: Any,
    ) -> dict[str, Outcome]:
        self.sittings.append(sittings)
        self.most_rounds.append(most_rounds)
        noise = {"a": sittings_of_ms(_NOISE * self.times), "b": sittings_of_ms(_NOISE[::-1] * self.times)}
        self.went_on.append(go_on(noise) if go_on else set())
        turns = (Turn(2.0, taken_again=True, moved=True), *[Turn(1.0)] * rounds)
        ran = Outcome(Samples((1.0,) * rounds), sittings=(Sitting(turns),))
        failed = Outcome(None, reason="it crashed", unavailable=self.full)
        return {c.name: failed if c.name in self.failing else ran for c in contenders}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _Machine:
    machine = _Machine()
    monkeypatch.setattr("collage_core.pipeline.comparison.measure_rounds", machine)
    return machine


def _contender(name: str, _: Workspace) -> Contender:
    return Contender(name, {}, open_placement)  # never opened


class _Runs:
    """One comparison of two contenders after the other, over one database."""

    def __init__(self, workspace: Workspace, database: CostDatabase) -> None:
        self._workspace, self.database = workspace, database

    def __call__(self, rounds: int | None = 4) -> Comparison:
        entrants = [Entrant(name, name, {}, partial(_contender, name)) for name in ("a", "b")]
        workspace = self._workspace
        target = Target("cpu", 1)
        return compare(
            workspace.graph, entrants, target, self.database, workspace, Silent(), title="t", rounds=rounds
        )


@pytest.fixture
def run(parse: Parse, tmp_path: Path) -> Iterator[_Runs]:
    graph = from_model(parse("(float[8] x) => (float y) { y = Relu(x) }"))
    with Workspace(graph) as workspace, CostDatabase(tmp_path / "c.sqlite") as database:
        yield _Runs(workspace, database)


def test_processes_start_anew_every_two_rounds(machine: _Machine, run: _Runs) -> None:
    for rounds in (1, 3, 4, 6, 16):
        run(rounds)
    assert machine.sittings == [1, 1, 2, 3, 8]
    assert set(machine.most_rounds) == {MOST_ROUNDS}


@pytest.mark.usefixtures("machine")
def test_what_was_taken_again_is_kept(run: _Runs) -> None:
    for _ in range(2):
        (sitting,) = sittings_of(run().records["a"])
        assert [(t.ms, t.taken_again) for t in sitting.turns[:2]] == [(2.0, True), (1.0, False)]


def test_what_is_too_close_to_call_goes_on_unless_rounds_are_asked_for(
    machine: _Machine, run: _Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(6)
    assert run(None).measured, "it was another comparison"
    assert not run(None).measured
    assert machine.went_on == [set(), {"a", "b"}]
    assert machine.sittings == [3] * 2
    monkeypatch.setattr("collage_core.pipeline.comparison._UNSETTLED_S", -1.0)
    run(None)
    assert machine.went_on[-1], "three sittings are too few"
    machine.times = 3
    run.database.prune(older_than_s=-1.0)
    run(None)
    assert not machine.went_on[-1], "not for ever"


def test_failures_are_recalled_with_the_rest_until_they_are_pruned(machine: _Machine, run: _Runs) -> None:
    machine.failing = {"a"}
    assert run().records["a"].reason == "it crashed"
    machine.failing = set()
    again = run()
    assert not again.measured
    assert again.records["a"].reason == "it crashed"
    assert again.records["b"].ok

    run.database.prune(infeasible=True)
    third = run()
    assert third.measured, "what is left of an earlier run does not compare with a new one"
    assert {r.status for r in third.records.values()} == {"ok"}
    assert not run().measured


@pytest.mark.parametrize(("failing", "full"), [({"a", "b"}, False), ({"a"}, True)])
def test_what_the_machine_is_to_blame_for_is_not_kept(
    machine: _Machine, run: _Runs, failing: set[str], full: bool
) -> None:
    machine.failing, machine.full = failing, full
    assert run().measured
    machine.failing = set()
    again = run()
    assert again.measured
    assert all(r.ok for r in again.records.values())
