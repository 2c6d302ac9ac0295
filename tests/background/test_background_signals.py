"""A signal's handler runs in the main thread, whatever that does: it may raise, or close the session."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from background_child import Told
from processes import state_of, wait_until

from collage_core import Background, Session
from collage_core.background.tree import Tree
from collage_core.errors import CollageError

if TYPE_CHECKING:
    from tests.background.conftest import Improved

_LIMIT_S = 60.0


def _computes(improved: Improved) -> bool:
    pids = improved.told.pids
    return bool(pids) and state_of(pids[1]) != "T"


def _ran_here(work: Callable[[], object]) -> set[str]:
    """By this thread, of the gate: names of functions."""
    ran = set()

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and Path(frame.f_code.co_filename).name == "gate.py":
            ran.add(frame.f_code.co_name)

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return ran


def test_the_main_thread_is_never_at_the_gate(improved: Improved) -> None:
    assert threading.current_thread() is threading.main_thread()
    assert wait_until(lambda: _computes(improved))
    assert _ran_here(improved.ask) == set()
    assert _ran_here(improved.session.close) == set()


@pytest.mark.ci
def test_nor_when_a_model_is_opened(improved: Improved, tmp_path: Path) -> None:
    model, told = tmp_path / "m.onnx", Told(tmp_path / "of_model")
    model.write_bytes(b"whatever `improve` makes of it")
    told.folder.mkdir()
    told.find(*improved.better)
    opened: list[Session] = []
    options = Background(output=told.folder / "kept.collage")
    assert _ran_here(lambda: opened.append(Session(model, optimize=options))) == {"__init__"}
    assert _ran_here(opened[0].close) == set()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What a finalizer raises is told of by nobody."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _interrupted_at(event: int, work: Callable[[], object]) -> bool:
    """Whether it has so many: handlers run where a function is entered, or left."""
    seen = count(1)

    def trace(frame: FrameType, what: str, _: object) -> Any:
        if what in ("call", "return") and next(seen) == event:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.ci
@pytest.mark.usefixtures("uncollected")
def test_wherever_a_request_is_interrupted_others_are_answered(improved: Improved) -> None:
    """And the optimiser goes on."""
    improved.ask()
    events = count(1)
    while _interrupted_at(next(events), improved.ask):
        answers: list[Any] = []
        other = threading.Thread(target=lambda to=answers: to.append(improved.ask()), daemon=True)
        other.start()
        other.join(_LIMIT_S)
        [y] = answers
        np.testing.assert_array_equal(y, improved.ask())
    assert next(events) > 20
    assert wait_until(lambda: _computes(improved))


def test_a_handler_may_close_it_while_a_request_is_on_its_way(
    improved: Improved, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wait_until(lambda: _computes(improved))
    main, stop = threading.get_ident(), Tree.stop
    closing, closed = threading.Event(), threading.Event()

    def close(*_: object) -> None:
        closing.set()
        improved.session.close()
        closed.set()

    def stops(tree: Tree) -> None:
        # More than once: what comes just before the main thread begins to wait is seen when it has waited.
        while not closing.wait(0.1):
            signal.pthread_kill(main, signal.SIGUSR1)
        stop(tree)

    def end(*_: object) -> None:
        raise TimeoutError

    before = [signal.signal(signal.SIGUSR1, close), signal.signal(signal.SIGALRM, end)]
    monkeypatch.setattr(Tree, "stop", stops)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        with suppress(CollageError):  # it may have come too late
            improved.ask()
    finally:
        closing.set()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])
    assert closed.is_set()
    state = improved.session.optimization
    assert state is not None
    assert state.state == "closed"
