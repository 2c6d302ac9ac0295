"""Comparisons: how their rounds are laid out, and when they are recalled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from simulated_sittings import sittings_of_ms

from collage_core import CostDatabase, Target, optimize
from collage_core.costs.ratio import sittings_of
from collage_core.costs.rounds import MOST_ROUNDS, Limits, Rounds, Turns
from collage_core.costs.samples import Samples
from collage_core.costs.seats import Contender, Outcome
from collage_core.costs.sittings import Sitting, Turn
from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from collage_core.measuring.comparison import Comparison, Contest, Plan, Unsettled
from collage_core.measuring.entrants import Entrant, placement_entrant
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Silent
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.effort import QUICK
from collage_core.runtime.session import open_placement

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse


_NOISE = ((1.0, 1.0), (1.5, 1.5), (2.0, 1.0))
_FOUR_ROUNDS = Plan.of_rounds(4)


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
        self.hopeless: list[float] = []
        self.patience: list[float] = []
        self.went_on: list[set[str]] = []

    def __call__(
        self,
        contenders: Sequence[Contender],
        rounds: Rounds,
        turns: Turns,
        limits: Limits,
        *,
        go_on: Callable[[Mapping[str, Sequence[Sitting]]], set[str]] | None,
        **_: Any,
    ) -> dict[str, Outcome]:
        has_time, sittings = limits.has_time, rounds.sittings
        self.sittings.append(next((n for n in range(1, sittings) if not has_time(1.0)), sittings))
        self.most_rounds.append(rounds.most)
        self.hopeless.append(rounds.hopeless)
        self.patience.append(rounds.patience)
        noise = {"a": sittings_of_ms(_NOISE * self.times), "b": sittings_of_ms(_NOISE[::-1] * self.times)}
        invited = go_on(noise) if go_on else set()
        self.went_on.append(invited if invited and has_time(1.0) else set())
        sat = (Turn(2.0, taken_again=True, moved=True), *[Turn(1.0)] * rounds.count)
        ran = Outcome(Samples((1.0,) * rounds.count), sittings=(Sitting(sat),))
        failed = Outcome(None, reason="it crashed", unavailable=self.full)
        return {c.name: failed if c.name in self.failing else ran for c in contenders}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _Machine:
    machine = _Machine()
    monkeypatch.setattr("collage_core.measuring.machine.measure_rounds", machine)
    return machine


def _contender(name: str) -> Contender:
    return Contender(name, {}, open_placement)  # never opened


class _Runs:
    """One comparison of two contenders after the other, over one database."""

    def __init__(self, workspace: Workspace, database: CostDatabase) -> None:
        self._workspace, self.database = workspace, database

    def __call__(
        self,
        plan: Plan = _FOUR_ROUNDS,
        title: str = "t",
        has_time: Callable[[float], bool] = lambda seconds: True,
        limit_s: float | None = None,
    ) -> Comparison:
        entrants = [
            Entrant(name, name, {}, self._workspace, partial(_contender, name)) for name in ("a", "b")
        ]
        machine = Machine.of(self.database, (), Target("cpu", 1))
        contest = Contest(title, entrants, plan, is_checked=False)
        known = contest.recalled(machine, limit_s)
        return known or contest.run(machine, Limits(has_time=has_time), limit_s)


@pytest.fixture
def run(parse: Parse, tmp_path: Path) -> Iterator[_Runs]:
    graph = from_model(parse("(float[8] x) => (float y) { y = Relu(x) }"))
    with Workspace(graph) as workspace, CostDatabase(tmp_path / "c.sqlite") as database:
        yield _Runs(workspace, database)


def test_processes_start_anew_every_two_rounds(machine: _Machine, run: _Runs) -> None:
    for rounds in (1, 3, 4, 6, 16):
        run(Plan.of_rounds(rounds))
    assert machine.sittings == [1, 1, 2, 3, 8]
    assert set(machine.most_rounds) == {MOST_ROUNDS}


@pytest.mark.usefixtures("machine")
def test_what_was_taken_again_is_kept(run: _Runs) -> None:
    for _ in range(2):
        (sitting,) = sittings_of(run().records["a"])
        assert [(t.ms, t.taken_again) for t in sitting.turns[:2]] == [(2.0, True), (1.0, False)]


def test_what_is_too_close_to_call_goes_on_unless_rounds_are_asked_for(machine: _Machine, run: _Runs) -> None:
    run(Plan.of_rounds(6))
    plan = Plan(sittings=3)
    assert run(plan).measured, "it was another comparison"
    assert not run(plan).measured
    assert machine.went_on == [set(), {"a", "b"}]
    assert machine.sittings == [3] * 2
    at_once = replace(plan, unsettled_s=0.0)
    run(at_once)
    assert machine.went_on[-1], "three sittings are too few"
    machine.times = 3
    run.database.prune(older_than_s=-1.0)
    run(at_once)
    assert not machine.went_on[-1], "not for ever"


def test_a_comparison_is_run_as_planned(machine: _Machine, run: _Runs) -> None:
    assert Plan().most_rounds == MOST_ROUNDS
    first = Plan(sittings=2, goes_on=False, hopeless=1.5, patience=0.1, most_rounds=8)
    for plan in (first, first, replace(first, patience=0.2), replace(first, hopeless=2.0)):
        run(plan)
    assert machine.sittings == [2] * 3, "the same plan is recalled, others are not"
    assert machine.most_rounds == [8] * 3
    assert machine.hopeless == [1.5, 1.5, 2.0]
    assert machine.patience == [0.1, 0.2, 0.1]


def test_rounds_that_are_asked_for_are_all_there_is() -> None:
    plan = Plan.of_rounds(5)
    assert (plan.sittings, plan.rounds, plan.goes_on) == (2, 5, False)
    twice = plan.twice()
    assert (twice.sittings, twice.rounds, twice.goes_on) == (5, 10, False)
    assert (Plan.of_rounds(1).sittings, Plan.of_rounds(1).rounds) == (1, 1)
    assert (Plan.of_rounds(1).twice().sittings, Plan.of_rounds(1).twice().rounds) == (1, 2)


def test_twice_is_twice_as_many_sittings_of_everything() -> None:
    plan = Plan(sittings=3, most_sittings=8, unsettled_s=20.0, hopeless=1.5, most_in_front=2)
    twice = plan.twice()
    assert (plan.rounds, twice.rounds) == (6, 12)
    assert twice == replace(plan, sittings=6, most_sittings=16, unsettled_s=40.0)


def _none(seconds: float) -> bool:
    """No time for anything."""
    return False


def test_what_the_clock_has_cut_short_is_recalled_only_where_there_is_no_more_time(
    machine: _Machine, run: _Runs
) -> None:
    plan = Plan(sittings=3)
    cut = run(plan, has_time=_none, limit_s=60.0)
    assert cut.measured
    assert cut.is_cut_short
    assert machine.went_on == [set()]
    for limit_s in (60.0, 30.0):
        again = run(plan, has_time=_none, limit_s=limit_s)
        assert not again.measured
        assert again.is_cut_short
    longer = run(plan, limit_s=90.0)
    assert longer.measured
    assert not longer.is_cut_short
    assert machine.went_on[-1] == {"a", "b"}
    assert not run(plan, has_time=_none, limit_s=1.0).measured, "what is known costs no time"
    assert not run(plan).measured


def test_what_the_clock_has_cut_short_is_measured_again_where_nothing_limits(
    machine: _Machine, run: _Runs
) -> None:
    assert run(_FOUR_ROUNDS, has_time=_none, limit_s=60.0).is_cut_short
    assert run(_FOUR_ROUNDS).measured
    assert machine.sittings == [1, 2]
    one = Plan(sittings=1, goes_on=False)
    assert not run(one, has_time=_none, limit_s=60.0).is_cut_short, "there was nothing to cut"
    assert not run(one).measured


def _sat(times: int) -> dict[str, tuple[Sitting, ...]]:
    """Sittings of three that cannot be told from each other."""
    noises = {"a": _NOISE, "b": _NOISE[::-1], "c": (*_NOISE[1:], *_NOISE[:1])}
    return {name: sittings_of_ms(noise * times) for name, noise in noises.items()}


def _unsettled(plan: Plan, clock: Callable[[], float] = lambda: 0.0) -> Unsettled:
    return Unsettled(plan, "t", Silent(), clock)


def test_who_sits_on_is_limited_by_the_plan() -> None:
    assert _unsettled(Plan())(_sat(1)) == {"a", "b", "c"}
    assert len(_unsettled(Plan(most_in_front=2))(_sat(1))) == 2


def test_the_close_ones_go_on_for_as_long_as_planned() -> None:
    now_s = [0.0]
    go_on = _unsettled(Plan(unsettled_s=60.0), lambda: now_s[0])
    assert go_on(_sat(2)), "six sittings are too few, however long they took"
    now_s[0] = 1000.0
    assert go_on(_sat(3))
    now_s[0] = 1059.0
    assert go_on(_sat(3))
    now_s[0] = 1061.0
    assert not go_on(_sat(3))


def test_no_more_sittings_than_planned() -> None:
    plan = Plan(most_sittings=6, unsettled_s=0.0)
    assert _unsettled(plan)(_sat(1))
    assert not _unsettled(plan)(_sat(2)), "though eight would be enough to tell"
    assert _unsettled(replace(plan, most_sittings=7))(_sat(2))


def test_quick_has_two_more_sittings_of_three_at_most() -> None:
    four = {**_sat(1), "d": sittings_of_ms(_NOISE)}
    assert len(_unsettled(QUICK.choosing)(four)) == 3
    assert not _unsettled(QUICK.choosing)({name: s * 2 for name, s in four.items()})


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


@pytest.mark.ci
def test_two_graphs_of_one_model_stand_beside_each_other(parse: Parse, tmp_path: Path) -> None:
    """Each is held to its own reference, and the comparison says which graph each entrant is about."""
    text = "(float[64] x) => (float y) { a = Identity(x) b = Relu(a) y = Neg(b) }"
    given = from_model(parse(text))
    graphs = {"as given": given, "without identities": normalise(given)}
    with ExitStack() as opened:
        database = opened.enter_context(CostDatabase(tmp_path / "c.sqlite"))
        machine = Machine.of(database, (), Target("cpu", 1))
        x = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}
        entrants = []
        for name, graph in graphs.items():
            workspace = opened.enter_context(Workspace(graph, x))
            found = optimize(graph, backends=["reference"], costs=tmp_path / "c.sqlite", inputs=x, rounds=2)
            entrants.append(placement_entrant(workspace, name, found.placement, machine.registry))
        contest = Contest("graphs", entrants, _FOUR_ROUNDS)
        comparison = contest.run(machine)
        again = contest.recalled(machine)
        assert {r.status for r in comparison.records.values()} == {"ok"}
        assert set(comparison.graphs) == set(graphs)
        assert len(set(comparison.graphs.values())) == 2
        assert again is not None
        assert again.graphs == comparison.graphs
        assert comparison.renamed({"as given": "a"}).graphs["a"] == comparison.graphs["as given"]

        wrong = opened.enter_context(Workspace(graphs["as given"], {"x": -x["x"]}))
        misled = [replace(entrants[0], workspace=wrong), entrants[1]]
        statuses = {
            n: r.status for n, r in Contest("graphs", misled, _FOUR_ROUNDS).run(machine).records.items()
        }
        assert statuses == {"as given": "wrong", "without identities": "ok"}
