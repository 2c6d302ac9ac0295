"""Time that leaves out pauses, what was measured in one, and trees of processes that stand still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import children, is_guardian, state_of, wait_until

from collage_core import clock
from collage_core.background.events import Told, name_of
from collage_core.background.log import EventLog
from collage_core.background.tree import Tree
from collage_core.clock import Pauses
from collage_core.costs.database import CostDatabase
from collage_core.costs.processors import Processors
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.timing import time_bound
from collage_core.pipeline.budget import Budget
from collage_core.worker import Worker
from collage_core.worker.worker import family

_DAY_NS = 86_400 * 10**9


@pytest.fixture
def page() -> Iterator[tuple[Pauses, str]]:
    """Of pauses, and by which name others open it."""
    pauses, descriptor = Pauses.anonymous()
    yield pauses, name_of(descriptor)
    os.close(descriptor)


@pytest.fixture
def pauses(page: tuple[Pauses, str], monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """Those of this process."""
    monkeypatch.setattr(clock, "_pauses", page[0])
    return page[0]


def _pause(pauses: Pauses, lasted_ns: int) -> None:
    pauses.begin()
    pauses.end(lasted_ns)


def test_without_pauses_it_is_python_s_own_time() -> None:
    assert not clock.can_be_paused()
    before, now, after = time.monotonic(), clock.monotonic(), time.monotonic()
    assert before <= now <= after
    before_ns, now_ns, after_ns = time.perf_counter_ns(), clock.perf_counter_ns(), time.perf_counter_ns()
    assert before_ns <= now_ns <= after_ns
    assert (clock.pauses(), clock.paused_ns()) == (0, 0)


def test_a_pause_takes_no_time(pauses: Pauses) -> None:
    budget = Budget(60.0)
    before_s, before_ns = time.monotonic(), time.perf_counter_ns()
    _pause(pauses, 50)
    _pause(pauses, _DAY_NS)
    assert clock.monotonic() < before_s - 86_000
    assert clock.perf_counter_ns() < before_ns - 86_000 * 10**9
    assert budget.spent_s < -86_000
    assert (pauses.count, clock.paused_ns()) == (2, _DAY_NS + 50)


def test_its_number_is_another_after_a_pause_and_within_one(pauses: Pauses) -> None:
    numbers = [clock.pauses()]
    pauses.begin()
    numbers.append(clock.pauses())
    assert pauses.count == 1
    pauses.end(0)
    numbers.append(clock.pauses())
    assert pauses.count == 1
    assert len(set(numbers)) == 3


def test_a_clock_that_is_read_while_a_pause_ends_is_read_again(pauses: Pauses) -> None:
    reads: list[int] = []

    def read() -> int:
        if not reads:
            pauses.end(1000)
        reads.append(5000)
        return 5000

    assert clock._passed(pauses, read, 1) == 4000
    assert len(reads) == 2


def test_workers_and_theirs_share_the_pauses(page: tuple[Pauses, str]) -> None:
    pauses, name = page
    with Worker({clock.VARIABLE: name}) as worker:
        assert worker.call(clock.can_be_paused)
        _pause(pauses, 7)
        assert worker.call(_in_another) == (2, 7)


def _in_another() -> tuple[int, int]:
    with Worker() as worker:
        return worker.call(_told)


def _told() -> tuple[int, int]:
    return clock.pauses(), clock.paused_ns()


def test_a_page_that_is_gone_is_none() -> None:
    told = "import collage_core.clock as c; print(c.can_be_paused())"
    variables = {**os.environ, clock.VARIABLE: "/proc/self/fd/999"}
    out = subprocess.run([sys.executable, "-c", told], env=variables, stdout=subprocess.PIPE, check=True)
    assert out.stdout == b"False\n"


def test_a_run_that_was_stopped_is_left_out(pauses: Pauses) -> None:
    runs = 0

    def bound() -> None:
        nonlocal runs
        runs += 1
        if runs == 4:
            _pause(pauses, 30_000_000)
            time.sleep(0.03)

    policy = Policy(warmup_runs=1, min_runs=10, max_runs=10, max_seconds=600.0, evict_bytes=0)
    samples = time_bound(lambda: time.sleep(0.001), policy)
    assert samples.runs == 10
    stopped = time_bound(bound, policy)
    assert stopped.preempted >= 1


def test_what_was_stopped_while_it_was_measured_is_measured_again(pauses: Pauses) -> None:
    for as_it_comes in (False, True):
        turns = _turns(pauses, [True, True, False, True], as_it_comes=as_it_comes)
        assert turns == [(0, True, True), (1, True, True), (2, False, False)]


def test_where_requests_come_too_often_it_ends(pauses: Pauses) -> None:
    turns = _turns(pauses, [True] * 100)
    assert len(turns) == 21
    assert turns[-1] == (20, True, False)


def test_what_began_while_others_were_being_stopped_is_measured_again(pauses: Pauses) -> None:
    pauses.begin()
    assert _turns(pauses, [False]) == [(0, False, False)]
    numbers = []
    for attempt in Processors().attempts(_worker()):
        numbers.append(attempt.number)
        if attempt.number == 0:
            pauses.end(5)
    assert numbers == [0, 1]


def _worker() -> Any:
    return SimpleNamespace(pause=lambda: None, resume=lambda: None)


def _turns(pauses: Pauses, stopped: list[bool], *, as_it_comes: bool = False) -> list[tuple[int, bool, bool]]:
    """Of each its number, whether it moved, and whether it is taken again."""
    seen = []
    for attempt, is_stopped in zip(
        Processors().attempts(_worker(), as_it_comes=as_it_comes), stopped, strict=False
    ):
        seen.append(attempt)
        if is_stopped:
            _pause(pauses, 5)
    return [(a.number, a.moved, a.taken_again) for a in seen]


def test_a_worker_that_somebody_lets_go_on_is_stopped_again(
    pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sent = Worker._signal, []

    def meddled_with(worker: Worker, number: signal.Signals) -> None:
        send(worker, number)
        sent.append(number)
        if sent == [signal.SIGSTOP]:
            send(worker, signal.SIGCONT)

    with Worker() as worker:
        worker.call(abs, -1)
        monkeypatch.setattr(Worker, "_signal", meddled_with)
        worker.pause()
        assert state_of(worker.pid) == "T"
        assert len(sent) >= 2


def _with_others() -> tuple[int, int]:
    """In a worker: start one that computes and one that is stopped."""
    busy, paused = Worker(), Worker()
    _kept.extend((busy, paused))
    busy.call(_compute)
    paused.call(_compute)
    paused.pause()
    return busy.pid, paused.pid


_kept: list[Worker] = []


def _compute() -> None:
    for _ in range(2):
        threading.Thread(target=_for_ever, daemon=True).start()


def _for_ever() -> None:
    while True:
        pass


def _states(root: int) -> dict[int, str]:
    """Without guardians."""
    return {pid: state_of(pid) for pid in family(root) if not is_guardian(pid)}


def _stops(tree: Tree) -> bool:
    tree.stop()
    return tree.is_stopped


def test_all_stop_and_those_go_on_that_it_has_stopped(page: tuple[Pauses, str]) -> None:
    pauses, _ = page
    with Worker() as root:
        busy, paused = root.call(_with_others)
        tree = Tree(root.pid, pauses, EventLog(None))
        before = _states(root.pid)
        assert len(before) == 3
        assert len(list(family(root.pid))) == 6, "each has a guardian"
        for turn in range(1, 4):
            assert wait_until(lambda: _stops(tree))
            assert set(_states(root.pid).values()) == {"T"}
            assert pauses.count == turn
            tree.resume()
            assert not tree.is_stopped
            states = _states(root.pid)
            assert states[paused] == "T", "its own parent has stopped it"
            assert "T" not in (states[root.pid], states[busy])
            assert root.call(abs, -1) == 1
        assert pauses.paused_ns > 0
        assert tree.paused_s == pauses.paused_ns / 1e9
        tree.end()
        tree.stop()
        assert not tree.is_stopped


def test_what_others_wait_for_is_brought_to_its_end_first(page: tuple[Pauses, str]) -> None:
    pauses, _ = page
    with Worker() as root:
        tree = Tree(root.pid, pauses, EventLog(None))
        root.call(abs, -1)
        pauses.hold(True)
        tree.stop()
        assert (tree.is_stopped, tree.late) == (False, 1)
        assert state_of(root.pid) != "T"
        begun_s = time.monotonic()
        tree.stop()  # for the next request
        assert time.monotonic() - begun_s < 0.03, "the time is of all that come meanwhile"
        assert tree.late == 2
        pauses.hold(False)
        assert wait_until(lambda: _stops(tree))
        assert state_of(root.pid) == "T"
        assert pauses.count == 1
        tree.resume()


def test_a_write_to_the_database_is_brought_to_its_end(pauses: Pauses, tmp_path: Path) -> None:
    held = []
    with closing(CostDatabase(tmp_path / "costs.sqlite")) as database:
        database._connection.set_trace_callback(lambda statement: held.append(pauses.is_held))
        database.put(CostKey("kernel", "", "", "", {}, Policy()), CostRecord("failed", reason="made up"))
    assert held == [True]
    assert not pauses.is_held


def test_a_root_that_has_died_is_no_trouble(page: tuple[Pauses, str]) -> None:
    with Worker() as root:
        root.call(abs, -1)
        tree = Tree(root.pid, page[0], EventLog(None))
        assert wait_until(lambda: _stops(tree))
        os.kill(root.pid, signal.SIGKILL)
        assert wait_until(lambda: state_of(root.pid) == "Z")
        tree.resume()
        tree.stop()
        assert tree.is_stopped
        assert not children(root.pid)


def test_events_come_whole() -> None:
    told = Told()
    try:
        os.write(told.descriptor, b'{"t": 1}\n{"t"')
        assert told.news() == [{"t": 1}]
        assert told.news() == []
        os.write(told.descriptor, b": 2}\n")
        assert told.news() == [{"t": 2}]
    finally:
        told.close()
