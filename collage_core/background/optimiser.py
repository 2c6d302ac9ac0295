"""The process that optimises, with all that it starts, and what it tells."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVarTuple, Unpack

from collage_core.background.events import Told, name_of
from collage_core.background.log import EventLog
from collage_core.background.options import BackgroundState
from collage_core.background.tree import Tree
from collage_core.clock import VARIABLE, Pauses
from collage_core.worker import Worker

__all__ = ["Optimiser"]

_Ts = TypeVarTuple("_Ts")


class Optimiser:
    """A worker that tells events, and that can be stopped with all that it has started (`tree`).

    log: of when it is. WorkerError where it cannot be started, CollageError where nobody could stop it.
    """

    def __init__(self, log: EventLog) -> None:
        self._is_over = False
        self._told = Told()
        self._pauses, self._pauses_descriptor = Pauses.anonymous()
        try:
            # No end of its thread is to be the end of the worker, which one that is kept starts.
            self._worker = Worker({VARIABLE: name_of(self._pauses_descriptor)})
            try:
                self._worker.wait_tied()
                self.tree = Tree(self._worker.pid, self._pauses, log)
            except BaseException:
                self._worker.kill()
                raise
        except BaseException:
            self._let_go()
            raise

    def call(self, function: Callable[[Unpack[_Ts], str], None], *arguments: *_Ts) -> None:
        """Run it there, with the name of a file for its events behind the arguments. WorkerError as of
        `Worker.call`.
        """
        self._worker.call(function, *arguments, name_of(self._told.descriptor))

    def news(self) -> list[dict[str, Any]]:
        """The events that have come since it was asked last."""
        return self._told.news()

    def seen_in(self, state: BackgroundState) -> BackgroundState:
        """With how often it has been stopped, and for how long."""
        if state.state == "running" and self.tree.is_stopped:
            state = replace(state, state="paused")
        return replace(state, pauses=self._pauses.count, paused_s=self.tree.paused_s, late=self.tree.late)

    def interrupt(self) -> None:
        """From another thread: a call raises WorkerCrash."""
        self._worker.interrupt()

    def close(self) -> None:
        """Let it end. What it has told can still be read."""
        self._worker.close()

    def kill(self) -> None:
        """End it now, and let go of all. For one thread at a time; may be called twice."""
        self._worker.kill()
        self._let_go()

    def _let_go(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._told.close()
            os.close(self._pauses_descriptor)
