"""Requests on one side, measuring and building on the other: never both at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from collage_core.background.log import EventLog
from collage_core.background.tree import Tree

__all__ = ["Closing", "Gate"]

_LOOK_EVERY_S = 1e-3
"""At most, where somebody waits for silence."""


class Closing(Exception):  # noqa: N818  (no mistake: whoever is at work is told to leave it)
    """The session is being closed."""


class Gate:
    """Lets requests through at any time, and what is done in the background while there are none.

    tree: processes that are stopped when a request comes. Besides them, one thread of this process may work,
    slice by slice: a request waits for the end of its slice. idle_s: nobody works before there has been no
    request for so long.

    A request wakes nobody: who waits for silence looks from time to time.

    For threads in which no signal's handler runs, so not for the main one: what a handler raises there might
    leave the lock held, or a request counted that has ended.
    """

    def __init__(self, tree: Tree, idle_s: float, log: EventLog) -> None:
        self._tree = tree
        self._idle_s = idle_s
        self._log = log
        self._numbers = count(1)
        self._changed = threading.Condition(threading.RLock())  # what is collected meanwhile may ask, too
        self._asked = 0
        """Requests that have come and are not answered."""
        self._last_s = time.monotonic() - idle_s
        self._silence_s = idle_s
        """Before a slice of the work that is being done."""
        self._slice_s: float | None = None
        """When the slice that is being worked at was begun."""
        self._is_closed = False

    @contextmanager
    def request(self, arrived_s: float | None = None) -> Iterator[None]:
        """Nobody works meanwhile. arrived_s: when it came; None for now."""
        number, error = next(self._numbers), None
        begun_s = arrived_s = time.monotonic() if arrived_s is None else arrived_s
        with self._changed:
            self._asked += 1
        try:
            with self._changed:
                self._tree.stop()
                while self._slice_s is not None:
                    self._changed.wait()
            begun_s = time.monotonic()
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            ended_s = time.monotonic()
            with self._changed:
                self._asked -= 1
                self._last_s = ended_s
            if self._log.is_kept:
                self._log.copy(
                    {
                        "t": ended_s,
                        "event": "request",
                        "number": number,
                        "arrived_s": arrived_s,
                        "begun_s": begun_s,
                        "error": error,
                    }
                )

    @property
    def quiet_s(self) -> float:
        """For how long there has been no request."""
        with self._changed:
            return 0.0 if self._asked else time.monotonic() - self._last_s

    def wait(self) -> None:
        """Until there has been no request for `idle_s`. Closing where it is closed."""
        with self._changed:
            self._wait(self._idle_s)

    def go_on(self, seconds: float) -> None:
        """Wait for so long. The tree works meanwhile, if it is quiet now, until a request comes."""
        with self._changed:
            if not self._is_closed and self._noise_s(self._idle_s) <= 0.0:
                self._tree.resume()
            self._changed.wait(seconds)

    @contextmanager
    def work(self, silence_s: float = 0.0) -> Iterator[None]:
        """A slice of work in this process, begun after `idle_s` of silence, and after so many seconds of it;
        the tree is stopped. `between` ends it and begins another. Closing where it is closed.
        """
        self._silence_s = max(self._idle_s, silence_s)
        self._begin()
        try:
            yield
        finally:
            self._end()

    def between(self) -> None:
        """Between two slices requests come first."""
        self._end()
        self._begin()

    def close(self) -> None:
        """Whoever works is told so at the end of the slice. Requests go through as ever."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def end_tree(self) -> None:
        """Nobody is to be stopped any more: all is over, or about to be ended."""
        with self._changed:
            self._tree.end()

    def _noise_s(self, silence_s: float) -> float:
        """How long to wait at least for so long a silence."""
        if self._asked:
            return max(silence_s, _LOOK_EVERY_S)
        return silence_s - (time.monotonic() - self._last_s)

    def _wait(self, silence_s: float) -> None:
        while not self._is_closed:
            left_s = self._noise_s(silence_s)
            if left_s <= 0.0:
                return
            self._changed.wait(max(left_s, _LOOK_EVERY_S))
        raise Closing

    def _begin(self) -> None:
        with self._changed:
            self._wait(self._silence_s)
            self._tree.stop()
            self._slice_s = time.monotonic()

    def _end(self) -> None:
        with self._changed:
            begun_s, self._slice_s = self._slice_s, None
            if begun_s is not None:
                self._log.add("slice", begun_s=begun_s)  # before a request that has waited for it begins
            self._changed.notify_all()
