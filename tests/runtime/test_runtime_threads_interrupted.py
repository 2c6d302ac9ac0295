"""Who is interrupted while a session's thread works for it, or is begun."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from collage_core.runtime import threads as _threads
from collage_core.runtime.threads import OwnThreads, in_a_thread_that_ends

_LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Whoever runs the tests in the background has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def threads() -> OwnThreads:
    return OwnThreads(1)


def _interrupt_when(begun: threading.Event) -> threading.Thread:
    def interrupt() -> None:
        begun.wait(_LIMIT_S)
        time.sleep(0.1)  # until it waits
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_who_is_interrupted_waits_for_what_has_begun(threads: OwnThreads) -> None:
    """It writes into memory of who asked."""
    begun, written = threading.Event(), np.zeros(1)

    def work() -> None:
        begun.set()
        time.sleep(0.5)
        written[0] = 1

    interrupting = _interrupt_when(begun)
    with pytest.raises(KeyboardInterrupt):
        threads.run(work)
    assert written == 1
    interrupting.join()
    assert threads.run(lambda: 5) == 5


def test_who_is_interrupted_before_it_begins_is_rid_of_it(threads: OwnThreads) -> None:
    begun, goes_on, ran = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        goes_on.wait(_LIMIT_S)

    with ThreadPoolExecutor(1) as other:
        first = other.submit(threads.run, work)
        interrupting = _interrupt_when(begun)
        begin_s = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            threads.run(lambda: ran.append(1))
        assert time.monotonic() - begin_s < _LIMIT_S / 2
        interrupting.join()
        goes_on.set()
        first.result()
    assert threads.run(lambda: 5) == 5
    assert not ran


def test_what_comes_while_that_is_waited_for_is_raised_afterwards(threads: OwnThreads) -> None:
    """As SIGTERM may, when a time limit is over."""
    raised: list[BaseException] = [SystemExit(3), TimeoutError()]

    def raise_next(number: int, frame: object) -> None:
        if len(raised) > 1:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        raise raised.pop()

    written = np.zeros(1)

    def work() -> None:
        time.sleep(0.6)
        written[0] = 1

    before = signal.signal(signal.SIGALRM, raise_next)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(SystemExit):
            threads.run(work)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert written == 1


def test_who_is_interrupted_while_it_opens_does_not_wait() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        goes_on.wait(_LIMIT_S)

    interrupting = _interrupt_when(begun)
    begin_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        in_a_thread_that_ends(work)
    assert time.monotonic() - begin_s < _LIMIT_S / 2
    goes_on.set()
    interrupting.join()


def test_who_stands_still_while_it_begins_one_keeps_nobody_waiting(
    threads: OwnThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As who is interrupted by a signal's handler that waits for others."""
    start, answered = _threads._start, threading.Event()

    def ask() -> None:
        if threads.run(lambda: 3) == 3:
            answered.set()

    def stands_still(*arguments: Any) -> None:
        monkeypatch.setattr(_threads, "_start", start)
        other = threading.Thread(target=ask)
        other.start()
        answered_meanwhile.append(answered.wait(_LIMIT_S))
        start(*arguments)
        others.append(other)

    answered_meanwhile: list[bool] = []
    others: list[threading.Thread] = []
    monkeypatch.setattr(_threads, "_start", stands_still)
    assert threads.run(lambda: 5) == 5
    others[0].join(_LIMIT_S)
    assert answered_meanwhile == [True]
