"""Sessions that get faster while they answer: who runs when, what takes over, and how it ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from background_child import Told
from collage_benchmarks.background_events import events_of, overlapping
from processes import gone, is_guardian, state_of, wait_until

from collage_core import Background, BackgroundState, Context, Session
from collage_core.background.opening import opened
from collage_core.errors import CollageError, StepError
from collage_core.inference.contexts import Contexts
from collage_core.worker.worker import family

if TYPE_CHECKING:
    from tests.background.conftest import Improved

_X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _state(improved: Improved) -> BackgroundState:
    state = improved.session.optimization
    assert state is not None
    return state


def _at_work(pids: list[int]) -> list[int]:
    return [pid for root in pids[:1] for pid in family(root) if state_of(pid) != "T" and not is_guardian(pid)]


def _computes(improved: Improved) -> bool:
    pids = improved.told.pids
    return bool(pids) and state_of(pids[1]) != "T"


def test_nobody_works_while_a_request_runs(improved: Improved, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait_until(lambda: _computes(improved))
    seen: list[list[int]] = []
    run = Context.run

    def looked_at(*arguments: Any) -> None:
        seen.append(_at_work(improved.told.pids))
        run(*arguments)
        seen.append(_at_work(improved.told.pids))

    monkeypatch.setattr(Context, "run", looked_at)
    for _ in range(3):
        for _ in range(5):
            np.testing.assert_array_equal(improved.ask(), _X)
        assert wait_until(lambda: _computes(improved)), "it goes on once nobody asks"
    assert seen == [[]] * 30
    state = _state(improved)
    assert state.state == "running"
    assert state.pauses >= 3
    assert state.paused_s > 0.0
    assert state.late == 0
    improved.session.close()
    events = events_of(improved.log)
    assert sum(e["event"] == "request" for e in events) == 15
    assert not overlapping(events)


def test_what_is_better_takes_over(improved: Improved) -> None:
    asked, done = threading.Event(), threading.Event()

    def ask() -> int:
        asked.set()
        count = 0
        while not done.is_set():
            np.testing.assert_array_equal(improved.ask(_X + count), _X + count)
            count += 1
            done.wait(0.002 if count % 5 else 0.05)
        return count

    with ThreadPoolExecutor(2) as pool:
        answered = [pool.submit(ask) for _ in range(2)]
        asked.wait()
        improved.told.find(*improved.better, label="better")
        taken = wait_until(lambda: _state(improved).swaps == 1)
        done.set()
    assert taken
    assert all(a.result() > 0 for a in answered)
    np.testing.assert_array_equal(improved.ask(), _X)
    state = _state(improved)
    assert (state.label, state.latency_ms, state.reason) == ("better", 1.0, None)
    improved.told.end()
    assert wait_until(lambda: _state(improved).state == "finished")
    np.testing.assert_array_equal(improved.ask(), _X)
    improved.session.close()
    events = events_of(improved.log)
    assert [e["label"] for e in events if e["event"] == "swap"] == ["better"]
    assert not overlapping(events)
    assert all(e["error"] is None for e in events if e["event"] == "request")


def test_who_has_opened_it_is_gone(improved: Improved, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a thread that has run a kernel OpenMP keeps others, which count against those of requests."""
    by: list[threading.Thread] = []

    def opened_by(*arguments: Any) -> Any:
        by.append(threading.current_thread())
        return opened(*arguments)

    monkeypatch.setattr("collage_core.background.answers.opened", opened_by)
    improved.told.find(*improved.better)
    assert wait_until(lambda: _state(improved).swaps == 1)
    assert wait_until(lambda: not by[0].is_alive())
    assert _state(improved).state in ("running", "paused")


def test_no_caller_runs_a_kernel(improved: Improved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor who looks whether what was found is right, and as fast."""
    ran: list[threading.Thread] = []
    execute = Context._execute

    def executed(context: Context) -> None:
        ran.append(threading.current_thread())
        execute(context)

    monkeypatch.setattr(Context, "_execute", executed)
    improved.ask()
    improved.told.find(*improved.better)
    assert wait_until(lambda: _state(improved).swaps == 1)
    improved.ask()
    assert len(ran) > 10
    assert len({*ran}) == 1
    assert ran[0] is not threading.current_thread()
    improved.session.close()
    ran[0].join(20)
    assert not ran[0].is_alive()


def test_what_is_found_last_takes_over_after_the_end(improved: Improved) -> None:
    assert wait_until(lambda: _computes(improved))
    np.testing.assert_array_equal(improved.ask(), _X)
    improved.told.find(*improved.better, label="better")
    improved.told.end()
    assert wait_until(lambda: _state(improved).swaps == 1)
    assert wait_until(lambda: all(map(gone, improved.told.pids)))
    np.testing.assert_array_equal(improved.ask(), _X)


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_what_answers_otherwise_does_not_take_over(improved: Improved, is_asked_before: bool) -> None:
    if is_asked_before:
        improved.ask()
    improved.told.find(*improved.wrong)
    assert wait_until(lambda: _state(improved).reason is not None)
    state = _state(improved)
    assert state.swaps == 0
    assert "output 'y' has error" in str(state.reason)
    np.testing.assert_array_equal(improved.ask(), _X)
    improved.told.find(*improved.better)
    assert wait_until(lambda: _state(improved).swaps == 1), "the next one does"
    assert _state(improved).reason is None


def _breaks(*_: object) -> None:
    raise StepError(0, "its kernel fails here")


def test_what_answers_and_cannot_run_is_replaced(improved: Improved, monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = improved.session
    monkeypatch.setattr(session._profiles._answers.now, "run", _breaks)
    with pytest.raises(StepError):
        improved.ask()
    improved.told.find(*improved.better)
    assert wait_until(lambda: _state(improved).swaps == 1)
    np.testing.assert_array_equal(improved.ask(), _X)


def test_a_first_answer_that_cannot_run_is_none(
    improved: Improved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's: what has no predecessor is held to nothing else."""
    model, told = tmp_path / "m.onnx", Told(tmp_path / "of_model")
    model.write_bytes(b"whatever `improve` makes of it")
    told.folder.mkdir()
    told.find(*improved.better)
    told.end()
    monkeypatch.setattr(Contexts, "run", _breaks)
    with pytest.raises(CollageError, match="StepError: its kernel fails here"):
        Session(model, optimize=Background(output=told.folder / "kept.collage"))


def test_what_cannot_be_opened_does_not_take_over(improved: Improved) -> None:
    path, placement = improved.better
    path.write_bytes(b"PK\x03\x04")
    improved.told.find(path, placement)
    assert wait_until(lambda: _state(improved).reason is not None)
    assert "not a bundle" in str(_state(improved).reason)
    np.testing.assert_array_equal(improved.ask(), _X)


def test_what_holds_another_one_by_now_is_left_to_the_next_word(improved: Improved) -> None:
    """Else what was found later would answer under the name and the figures of what was before."""
    path, placement = improved.better
    improved.told.find(path, replace(placement, predicted_ms=None, groups=placement.groups[:0]))
    assert wait_until(lambda: _state(improved).reason is not None)
    assert "holds a better one by now" in str(_state(improved).reason)
    improved.told.find(path, placement)
    assert wait_until(lambda: _state(improved).swaps == 1)


def test_a_request_that_fails_lets_the_optimiser_go_on(improved: Improved) -> None:
    assert wait_until(lambda: _computes(improved))
    with pytest.raises(CollageError, match="'x' has shape"):
        improved.ask(_X[:1])
    assert wait_until(lambda: _computes(improved))
    np.testing.assert_array_equal(improved.ask(), _X)


@pytest.mark.filterwarnings("ignore:optimising in the background has ended")
def test_an_optimiser_that_dies_is_told_of(improved: Improved) -> None:
    def die() -> None:
        improved.told.crash()
        assert wait_until(lambda: _state(improved).state == "failed" and not _threads())

    with pytest.warns(UserWarning, match=r"optimising in the background has ended: .* exit code 7"):
        die()
    assert "exit code 7" in str(_state(improved).reason)
    np.testing.assert_array_equal(improved.ask(), _X)
    assert all(map(gone, improved.told.pids))


@pytest.mark.filterwarnings("ignore:optimising in the background has ended")
def test_an_optimiser_that_dies_is_told_of_though_requests_go_on(improved: Improved) -> None:
    assert wait_until(lambda: _computes(improved))
    is_over = threading.Event()

    def asks() -> None:
        while not is_over.is_set():
            improved.ask()

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(asks)
        try:
            assert wait_until(lambda: _state(improved).state == "paused")
            os.kill(improved.told.pids[0], signal.SIGKILL)
            assert wait_until(lambda: _state(improved).state == "failed")
        finally:
            is_over.set()
        asking.result()
    assert "SIGKILL" in str(_state(improved).reason)


def test_a_log_that_cannot_be_written_costs_no_request(improved: Improved) -> None:
    session: Any = improved.session
    log = session._profiles._log._file
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log.fileno())
    os.close(full)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        y = improved.ask()
        assert wait_until(lambda: bool(said))
    assert "log.jsonl: no more events are kept: No space left" in str(said[0].message)
    assert log.closed
    np.testing.assert_array_equal(y, _X)
    np.testing.assert_array_equal(improved.ask(), _X)
    improved.session.close()
    assert _state(improved).state == "closed"


def _threads() -> list[str]:
    names = ("collage-optimise", "collage-background")
    return [t.name for t in threading.enumerate() if t.name in names]


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_closed_it_leaves_nobody(improved: Improved, is_asked_before: bool) -> None:
    assert wait_until(lambda: _computes(improved))
    if is_asked_before:
        improved.ask()
    improved.session.close()
    assert wait_until(lambda: all(map(gone, improved.told.pids)))
    assert not _threads()
    assert _state(improved).state == "closed"
    improved.session.close()
    with pytest.raises(CollageError, match="this session is closed"):
        improved.ask()


def test_who_closes_it_too_waits_until_it_is_closed(improved: Improved) -> None:
    assert wait_until(lambda: _computes(improved))

    def close() -> list[str]:
        improved.session.close()
        return _threads()

    with ThreadPoolExecutor(2) as closing:
        assert [done.result() for done in [closing.submit(close) for _ in range(2)]] == [[], []]
    assert _state(improved).state == "closed"


def test_dropped_it_leaves_nobody(improved: Improved) -> None:
    assert wait_until(lambda: _computes(improved))
    pids, session = improved.told.pids, improved.session
    improved.session = Session(improved.better[0])  # what the fixture closes
    del session
    gc.collect()
    assert wait_until(lambda: all(map(gone, pids)))
    assert wait_until(lambda: not _threads())


def test_a_fork_steers_nothing(improved: Improved) -> None:
    assert wait_until(lambda: _computes(improved))
    child = os.fork()
    if child == 0:
        ok = np.array_equal(improved.ask(), _X)
        improved.session.close()
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert _state(improved).pauses == 0
    assert wait_until(lambda: _computes(improved))
    np.testing.assert_array_equal(improved.ask(), _X)


_SCRIPT = """
import sys, time
from pathlib import Path
import background_child, numpy as np
import collage_core.background.improving as improving
from tests.background.conftest import X, open_improved
improving._improve = background_child.improve
improved = open_improved(Path(sys.argv[1]), idle_s=float(sys.argv[2]))
while not improved.told.pids:
    time.sleep(0.01)
assert np.array_equal(improved.ask(), X)
print(*improved.told.pids, flush=True)
if sys.argv[3] == "wait":
    sys.stdin.read()
"""


def _script(folder: Path, idle_s: float, then: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    ours = (str(root), str(root / "tests" / "support"))
    path = os.pathsep.join(filter(None, [*ours, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(folder), str(idle_s), then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("idle_s", [0.0, 600.0])
def test_killed_it_leaves_nobody(tmp_path: Path, idle_s: float) -> None:
    """Whether they compute at that moment or stand still."""
    with _script(tmp_path, idle_s, "wait") as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert wait_until(lambda: (state_of(pids[1]) == "T") == bool(idle_s))
        process.send_signal(signal.SIGKILL)
    assert wait_until(lambda: all(map(gone, pids)))


@pytest.mark.parametrize("idle_s", [0.0, 600.0])
def test_a_script_that_ends_leaves_nobody(tmp_path: Path, idle_s: float) -> None:
    with _script(tmp_path, idle_s, "end") as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert wait_until(lambda: all(gone(int(pid)) for pid in out.split()))


def test_a_session_that_was_asked_for_nothing(tmp_path: Path, improved: Improved) -> None:
    with Session(improved.better[0]) as session:
        assert session.optimization is None
