"""Requests, and who works between them: how long a silence comes before each slice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest

from collage_core.background.gate import Closing, Gate
from collage_core.background.log import EventLog
from collage_core.background.tree import Tree


class _Nobody:
    """A tree of no processes."""

    is_at_work = False

    def stop(self) -> None:
        self.is_at_work = False

    def resume(self) -> None:
        self.is_at_work = True


class _Slices:
    """Work in a thread, slice after slice; when each was begun and ended."""

    def __init__(self, idle_s: float, silence_s: float, takes_s: float) -> None:
        self.gate = Gate(cast(Tree, _Nobody()), idle_s, EventLog(None))
        self.told: list[tuple[float, float]] = []
        self._silence_s, self._takes_s = silence_s, takes_s
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with suppress(Closing), self.gate.work(self._silence_s):
            while True:
                begun_s = time.monotonic()
                time.sleep(self._takes_s)
                self.told.append((begun_s, time.monotonic()))
                self.gate.between()

    def close(self) -> None:
        self.gate.close()
        self._thread.join()


@pytest.fixture
def slices(request: pytest.FixtureRequest) -> Iterator[_Slices]:
    working = _Slices(*request.param)
    yield working
    working.close()


def _asked(slices: _Slices, takes_s: float) -> tuple[float, float]:
    """A request of so many seconds: when it ran."""
    with slices.gate.request():
        begun_s = time.monotonic()
        time.sleep(takes_s)
    return begun_s, time.monotonic()


@pytest.mark.parametrize("slices", [(0.0, 0.0, 0.002)], indirect=True)
def test_no_slice_is_begun_while_a_request_runs_be_there_no_silence_to_wait_for(slices: _Slices) -> None:
    requests = []
    for _ in range(5):
        requests.append(_asked(slices, 0.03))
        time.sleep(0.01)
    slices.close()
    assert slices.told
    for begun_s, ended_s in requests:
        assert not [s for s in slices.told if s[0] < ended_s and s[1] > begun_s]


@pytest.mark.parametrize("slices", [(0.005, 0.1, 0.02)], indirect=True)
def test_each_slice_is_begun_after_as_long_a_silence_as_was_asked_for(slices: _Slices) -> None:
    ends_s = []
    for _ in range(5):
        ends_s.append(_asked(slices, 0.0)[1])
        time.sleep(0.15)
    slices.close()
    begun = [begun_s for begun_s, _ in slices.told]
    assert len(begun) >= 5
    for end_s in ends_s:
        assert not [b for b in begun if end_s <= b < end_s + 0.099]


def test_the_tree_works_only_after_the_silence() -> None:
    tree = _Nobody()
    gate = Gate(cast(Tree, tree), 0.1, EventLog(None))
    with gate.request():
        gate.go_on(0.0)
        assert not tree.is_at_work
    gate.go_on(0.0)
    assert not tree.is_at_work
    gate.wait()
    gate.go_on(0.0)
    assert tree.is_at_work
