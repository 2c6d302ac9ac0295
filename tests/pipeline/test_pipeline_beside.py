"""Sessions that answer requests beside each other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from collage_core.errors import BackendError
from collage_core.formats import Array
from collage_core.ir.randomness import Drawn
from collage_core.measuring.beside import Load, SessionsBeside
from collage_core.peer import PeerSession
from collage_core.pipeline.benchmark import ONE_SESSION, _ways
from collage_core.serving import Serving

_X = np.array([1.0, 2.0], np.float32)


class _Doubling(PeerSession):
    """Doubles x; `on_run` is called by each run, which says in what thread it was."""

    def __init__(self, on_run: Callable[[], object] = lambda: None, factor: float = 2.0) -> None:
        self._on_run, self._factor = on_run, np.float32(factor)
        self._x = np.zeros(2, np.float32)
        self._y = np.zeros(2, np.float32)
        self.runs: Counter[int] = Counter()

    def set_inputs(self, inputs: Mapping[str, Array]) -> None:
        self._x = inputs["x"]

    def run(self) -> None:
        self._on_run()
        self.runs[threading.get_ident()] += 1
        self._y = self._x * self._factor

    def outputs(self) -> dict[str, Array]:
        return {"y": self._y}


def test_requests_are_shared_by_sessions_that_run_at_once() -> None:
    """Each waits in its first run for the other's: one after the other would wait for ever."""
    both = threading.Barrier(2, timeout=30)
    first = [True, True]

    def together(at: int) -> Callable[[], object]:
        def wait() -> None:
            if first[at]:
                first[at] = False
                both.wait()

        return wait

    sessions = [_Doubling(together(0)), _Doubling(together(1))]
    loaded = SessionsBeside(sessions, 8)
    loaded.set_inputs({"x": _X})
    assert threading.get_ident() not in sessions[0].runs | sessions[1].runs
    for session in sessions:
        session.runs.clear()
    first[:] = [True, True]
    loaded.run()
    assert sum(s.runs.total() for s in sessions) == 8
    assert all(len(s.runs) == 1 for s in sessions), "a session is for one thread at a time"
    np.testing.assert_array_equal(loaded.outputs()["y"], 2 * _X)
    loaded.run()
    assert sum(s.runs.total() for s in sessions) == 16


def test_one_session_answers_in_the_thread_that_asks() -> None:
    session = _Doubling()
    SessionsBeside([session], 3).run()
    assert session.runs == {threading.get_ident(): 3}


def test_a_request_that_fails_fails_the_run() -> None:
    def fail() -> None:
        raise BackendError("no more")

    with pytest.raises(BackendError, match="no more"):
        SessionsBeside([_Doubling(fail), _Doubling(fail)], 64).run()


def test_sessions_that_answer_differently_are_an_error() -> None:
    sessions = [_Doubling(), _Doubling(factor=2.001)]
    beside = SessionsBeside(sessions, 2, {})
    beside.set_inputs({"x": _X})
    with pytest.raises(BackendError, match="answer differently: output 'y' has error"):
        beside.outputs()


def test_a_session_that_had_no_request_has_an_answer() -> None:
    """A quick one may take them all."""
    sessions = [_Doubling(), _Doubling()]
    beside = SessionsBeside(sessions, 0, {})
    beside.set_inputs({"x": _X})
    beside.run()
    np.testing.assert_array_equal(beside.outputs()["y"], 2 * _X)


def test_what_is_drawn_may_differ_from_session_to_session() -> None:
    """It is held to its range, as everywhere."""
    sessions = [_Doubling(), _Doubling(factor=2.5)]
    beside = SessionsBeside(sessions, 2, {"y": Drawn(0.0, 5.0)})
    beside.set_inputs({"x": _X})
    np.testing.assert_array_equal(beside.outputs()["y"], 2 * _X)
    sessions[1].set_inputs({"x": 2 * _X})
    sessions[1].run()
    with pytest.raises(BackendError, match="answer differently"):
        beside.outputs()


@pytest.mark.parametrize(
    ("concurrency", "threads", "expected"),
    [(1, 1, (1, 4)), (2, 1, (2, 8)), (2, 4, (1, 8)), (8, 1, (4, 32)), (8, 2, (2, 32)), (3, 8, (1, 12))],
)
def test_there_are_as_many_sessions_as_processors_suffice_for(
    concurrency: int, threads: int, expected: tuple[int, int]
) -> None:
    load = Load.of(Serving.of(concurrency, threads, 4))
    assert (load.sessions, load.requests) == expected
    assert load.shares == load.requests, "of all that a run answers"


def test_peers_take_part_with_one_session_and_with_several() -> None:
    assert _ways(None, 2) == {"": None}
    assert _ways(Serving(2, 1), 2) == {"": Load(2, 8, 8), ONE_SESSION: Load(1, 8, 8)}
    assert _ways(Serving(8, 4), 2) == {"": Load(2, 32, 32), ONE_SESSION: Load(1, 32, 32)}
    assert _ways(Serving(1, 1), 2) == {ONE_SESSION: Load(1, 4, 4)}


def test_parts_are_timed_while_the_others_answer() -> None:
    other_runs = threading.Event()
    other = _Doubling(other_runs.set)

    class Parted(_Doubling):
        def parts_ms(self) -> list[float]:
            assert other_runs.wait(30), "nothing runs beside it"
            return [1.0, 2.0]

    first = Parted()
    beside = SessionsBeside([first, other], 8)
    beside.set_inputs({"x": _X})
    other_runs.clear()
    assert beside.parts_ms() == [1.0, 2.0]
    assert first.runs.total() == 1, "when it was given its inputs"
    ran = 1 + other.runs.total()
    beside.run()
    assert first.runs.total() + other.runs.total() == ran + 8, "nobody runs on"


def test_a_request_that_fails_beside_parts_that_are_timed_fails_them() -> None:
    def fail() -> None:
        failed.set()
        raise BackendError("no more")

    failed = threading.Event()

    class Parted(_Doubling):
        def parts_ms(self) -> list[float]:
            failed.wait(30)
            return [1.0]

    with pytest.raises(BackendError, match="no more"):
        SessionsBeside([Parted(), _Doubling(fail)], 4).parts_ms()


def test_what_a_request_takes_of_a_session_is_so_many_times_what_it_takes_of_all() -> None:
    load = Load.of(Serving(3, 2))
    assert load == (2, 12, 12)
    assert load.of_a_session == (2, 12, 6)
