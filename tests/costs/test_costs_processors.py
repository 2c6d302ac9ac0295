"""Processors that a host moves about: noticed, waited for, and what was measured meanwhile measured again."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from collage_core.costs import Contender, Rounds, Turns, measure_rounds
from collage_core.costs.limits import settling_limit_s
from collage_core.costs.processors import Look, Processors, Usual
from collage_core.errors import CollageError, WorkerError

TOGETHER, SHARED, APART = Look(120.0, 1.0), Look(105.0, 1.7), Look(310.0, 1.0)
_PROCESSORS = "collage_core.costs.processors"

runners = importlib.import_module("costs_odd_backend")


class Stoppable:
    """In place of the worker in which something is measured."""

    def __init__(self) -> None:
        self.is_running = True

    def pause(self) -> None:
        self.is_running = False

    def resume(self) -> None:
        self.is_running = True


WORKER: Any = Stoppable()


class Partner:
    """In place of the process on the other processor: what is seen, look by look, the last for ever."""

    def __init__(self, looks: Iterable[Look | None]) -> None:
        self.looks = list(looks)
        self.closed = 0

    def __call__(self, numbers: list[int]) -> Partner:
        return self

    def look(self) -> Look | None:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine this is."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(f"{_PROCESSORS}._one_of_each_core", list)
    monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", "20")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, two_cores: None) -> list[float]:
    """The time in seconds; sleeping moves it."""
    now_s = [0.0]
    monkeypatch.setattr(f"{_PROCESSORS}.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(f"{_PROCESSORS}.time.sleep", lambda s: now_s.__setitem__(0, now_s[0] + s))
    return now_s


def known() -> Usual:
    return Usual(TOGETHER.exchange_ns, known=True)


def taken(processors: Processors) -> list[int]:
    return [attempt.number for attempt in processors.attempts(WORKER)]


def watched(
    monkeypatch: pytest.MonkeyPatch, looks: Iterable[Look | None], usual: Usual | None = None
) -> tuple[Processors, list[str]]:
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", Partner(looks))
    said: list[str] = []
    return Processors(said.append, usual or known()), said


def test_what_is_usual_is_the_nearest_that_two_cores_have_been() -> None:
    usual = Usual()
    usual.learn(APART)
    assert usual.agrees(APART)
    assert usual.agrees(TOGETHER)
    assert not usual.agrees(SHARED)
    usual.learn(TOGETHER)
    assert not usual.agrees(APART)
    usual.learn(SHARED)  # nearer still, but one core
    assert usual.exchange_ns == TOGETHER.exchange_ns


def test_what_lasts_is_usual_until_better_is_seen() -> None:
    usual = known()
    for look in (SHARED, APART):
        usual.accept(look)
        assert usual.agrees(look)
    usual.learn(TOGETHER)
    assert not usual.agrees(SHARED)
    assert not usual.agrees(APART)
    nothing_else = Usual()
    nothing_else.accept(SHARED)
    assert nothing_else.agrees(APART), "how near two cores are has not been seen yet"


@pytest.mark.usefixtures("clock")
def test_once_is_enough_while_the_processors_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    processors, said = watched(monkeypatch, [TOGETHER])
    assert taken(processors) == [0]
    assert said == []


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("moved", [SHARED, APART])
def test_what_they_were_moved_during_is_measured_again(monkeypatch: pytest.MonkeyPatch, moved: Look) -> None:
    processors, said = watched(monkeypatch, [TOGETHER, moved, moved, TOGETHER, TOGETHER])
    assert taken(processors) == [0, 1]
    assert said == []


def test_nothing_is_measured_before_they_are_together(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    processors, said = watched(monkeypatch, [APART] * 200 + [TOGETHER])
    attempts = [(clock[0], attempt) for attempt in processors.attempts(WORKER)]
    assert [begun_s for begun_s, _ in attempts] == pytest.approx([4.0])
    ((_, attempt),) = attempts
    assert attempt.waited_s == processors.waited_s == pytest.approx(4.0)
    assert (attempt.before, attempt.after, attempt.moved) == (TOGETHER, TOGETHER, False)
    assert len(said) == 1
    assert "have been moved" in said[0]


def test_once_time_is_over_nothing_is_waited_for_or_repeated(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", Partner([APART] * 500))
    usual = known()
    processors = Processors(usual=usual, time_is_over=lambda: clock[0] >= 1.0)
    (attempt,) = processors.attempts(WORKER)
    assert attempt.waited_s == pytest.approx(1.0)
    assert attempt.moved
    assert not attempt.taken_again
    assert not usual.agrees(APART), "that time was over says nothing of the machine"
    (attempt,) = processors.attempts(WORKER)
    assert attempt.waited_s == 0.0


@pytest.mark.usefixtures("clock")
def test_what_is_measured_runs_only_while_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = Stoppable()

    class Watching(Partner):
        def look(self) -> Look | None:
            assert not worker.is_running
            return super().look()

    monkeypatch.setattr(f"{_PROCESSORS}._Partner", Watching([TOGETHER, APART, TOGETHER]))
    for _ in Processors(usual=known()).attempts(worker):
        assert worker.is_running
    assert not worker.is_running


@pytest.mark.usefixtures("clock")
def test_there_is_an_end_to_measuring_again(monkeypatch: pytest.MonkeyPatch) -> None:
    processors, said = watched(monkeypatch, [TOGETHER, APART] * 10)
    attempts = list(processors.attempts(WORKER))
    assert [(a.number, a.moved, a.taken_again) for a in attempts] == [
        *((n, True, True) for n in range(3)),
        (3, True, False),
    ]
    assert said == []


def test_what_takes_long_is_measured_once(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    processors, _ = watched(monkeypatch, [TOGETHER, APART])
    for attempt in processors.attempts(WORKER):
        assert attempt.number == 0
        clock[0] += 2.5
    assert attempt.moved
    assert not attempt.taken_again


@pytest.mark.parametrize("looks", [[APART, TOGETHER], [TOGETHER, SHARED], [SHARED, APART], [TOGETHER] * 2])
def test_as_it_comes_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], looks: list[Look]
) -> None:
    processors, said = watched(monkeypatch, [*looks, TOGETHER])
    (attempt,) = processors.attempts(WORKER, as_it_comes=True)
    assert [attempt.before, attempt.after] == looks
    assert attempt.moved == (looks != [TOGETHER] * 2)
    assert not attempt.taken_again
    assert clock[0] == attempt.waited_s == 0.0
    assert said == []


def test_there_is_an_end_to_waiting(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    processors, said = watched(monkeypatch, [SHARED])
    assert taken(processors) == [0]
    assert clock[0] == pytest.approx(20, abs=0.1)
    assert taken(processors) == [0]
    assert clock[0] == pytest.approx(20, abs=0.1), "what lasts is usual"
    assert len(said) == 2
    assert "may be slower than usual" in said[1]


def test_waiting_takes_no_more_than_half_of_the_time(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    partner = Partner([*[TOGETHER, *[APART] * 1001] * 10, TOGETHER])
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", partner)
    processors = Processors(usual=known())
    measured_s = 0.0
    while len(partner.looks) > 1:
        for _ in processors.attempts(WORKER):
            clock[0] += 0.1
            measured_s += 0.1
        assert processors.waited_s <= 20.1 + measured_s
    assert processors.waited_s > 25, "what is waited for has been seen again"


def test_a_process_looks_around_before_it_measures(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    usual = Usual()
    processors, _ = watched(monkeypatch, [*[APART] * 10, TOGETHER, APART, TOGETHER], usual)
    assert taken(processors) == [0]
    assert usual.exchange_ns == TOGETHER.exchange_ns
    passed_s = clock[0]
    assert passed_s == pytest.approx(1, abs=0.1)
    again, _ = watched(monkeypatch, [TOGETHER], usual)
    assert taken(again) == [0]
    assert clock[0] == passed_s


@pytest.mark.usefixtures("clock")
def test_where_nothing_can_be_told_all_is_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    processors, _ = watched(monkeypatch, [None])
    assert taken(processors) == [0]

    def unlucky(numbers: list[int]) -> Partner:
        raise WorkerError("a worker process cannot be started: no memory")

    processors = Processors(usual=known())
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", unlucky)
    assert taken(processors) == [0]


def test_threads_of_one_core_are_no_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = {0: "0,2\n", 1: "1,3\n", 2: "0,2\n", 3: "1,3\n"}
    monkeypatch.setattr(Path, "read_text", lambda path: siblings[int(path.parts[-3].removeprefix("cpu"))])
    one_of_each = importlib.import_module(_PROCESSORS)._one_of_each_core
    assert one_of_each([0, 1, 2, 3]) == [0, 1]
    assert one_of_each([2, 3]) == [2, 3]
    assert one_of_each([0, 2]) == [0]


@pytest.mark.parametrize(("numbers", "limit_s"), [({3}, "20"), (set(range(17)), "20"), ({0, 1}, "0")])
def test_no_process_is_started_where_there_is_nothing_to_look_at(
    monkeypatch: pytest.MonkeyPatch, numbers: set[int], limit_s: str
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: numbers)
    monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", limit_s)
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", None)
    assert taken(Processors()) == [0]


def test_the_limit_has_a_default_and_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLAGE_SETTLING_LIMIT_S")
    assert settling_limit_s() == 120
    for text, limit_s in (("3.5", 3.5), ("0", 0.0), ("0.0", 0.0)):
        monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", text)
        assert settling_limit_s() == limit_s
    for wrong in ("long", "-1", "nan"):
        monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", wrong)
        with pytest.raises(CollageError, match=rf"COLLAGE_SETTLING_LIMIT_S must be .* or 0; it is '{wrong}'"):
            settling_limit_s()


@pytest.mark.alone
@pytest.mark.usefixtures("two_cores")
def test_a_turn_is_taken_again_and_the_first_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    partner = Partner([TOGETHER, TOGETHER, TOGETHER, TOGETHER, SHARED, TOGETHER])
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", partner)
    monkeypatch.setattr(f"{_PROCESSORS}._usual", known())
    log = tmp_path / "log"
    contender = Contender("a", {}, runners.open_runner, (log, "a", "", 0.0))
    outcome = measure_rounds([contender], Rounds(3), Turns(1, 0.0, 1, 0.0))["a"]
    assert outcome.samples is not None
    assert outcome.samples.runs == 3
    (sitting,) = outcome.sittings
    assert [t.taken_again for t in sitting.turns] == [False, True, False, False]
    assert (sitting.turns[1].before, sitting.turns[1].after) == (TOGETHER, SHARED)
    assert len(sitting.kept) == 3
    assert len(log.read_text().splitlines()) == 2 + 4 * 2
    assert partner.closed == 1


@pytest.mark.alone
def test_two_real_processors_are_looked_at() -> None:
    numbers = sorted(os.sched_getaffinity(0))[:2]
    if len(numbers) < 2:
        pytest.skip("needs two processors")
    partner = importlib.import_module(_PROCESSORS)._Partner(numbers)
    try:
        before = os.sched_getaffinity(0)
        looks = [look for _ in range(20) if (look := partner.look()) is not None]
        assert os.sched_getaffinity(0) == before
        pid = partner._worker.pid
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        assert looks
        assert all(5 < look.exchange_ns < 100_000 for look in looks)
        assert all(0.2 < look.slowdown < 20 for look in looks)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises((OSError, WorkerError)):
            _ = [partner.look() for _ in range(100)]
        assert os.sched_getaffinity(0) == before
    finally:
        partner.close()
    assert not Path(f"/proc/{pid}").exists()
