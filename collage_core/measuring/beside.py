"""Sessions of one model that answer requests beside each other, as a server has them do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event
from typing import NamedTuple, cast

from collage_core.costs.check import Standard, compare_all, standards
from collage_core.costs.seats import Divisible
from collage_core.errors import BackendError
from collage_core.formats import Array
from collage_core.ir import load_stored
from collage_core.peer import PeerSession
from collage_core.placement import Placement
from collage_core.plugins import default_registry
from collage_core.runtime.session import load_arrays, opened
from collage_core.serving import Serving
from collage_core.target import Target

__all__ = ["Load", "SessionsBeside", "open_peer_beside", "open_placement_beside"]

_REQUESTS_EACH = 4
"""Of a run, for each that asks: who is done first has others to take, until the last ones."""


class Load(NamedTuple):
    """sessions: that run beside each other, each in a thread of its own. requests: that a run answers, all
    together: who is done with one takes the next. shares: among how many its time is shared out.
    """

    sessions: int
    requests: int
    shares: float

    @classmethod
    def of(cls, serving: Serving) -> Load:
        """Times are what one request takes of all: with N of them a second, 1000 / N ms."""
        requests = _REQUESTS_EACH * serving.concurrency
        return cls(serving.sessions, requests, requests)

    @property
    def of_a_session(self) -> Load:
        """Times are what a request takes of a session, beside the others: to compare with what its parts
        take.
        """
        return self._replace(shares=self.requests / self.sessions)


class SessionsBeside(PeerSession):
    """Sessions of one model, on the same inputs. A run is over when the last request is answered.

    held_to: what is to be the same of all their answers (`standards`); None where nobody compares them.
    """

    def __init__(
        self,
        sessions: Sequence[PeerSession],
        requests: int,
        held_to: Mapping[str, Standard] | None = None,
    ) -> None:
        self._sessions = tuple(sessions)
        self._requests = requests
        self._held_to = held_to
        # One answers in the thread that asks.
        self._threads = ThreadPoolExecutor(len(sessions)) if len(sessions) > 1 else None

    def set_inputs(self, inputs: Mapping[str, Array]) -> None:
        """And run each: one that is quick may leave no request to the others, which are asked for answers.
        In the threads that run them later: what OpenMP keeps for another one would count against theirs.
        """
        for session in self._sessions:
            session.set_inputs(inputs)
        if self._threads is None:
            self._sessions[0].run()
            return
        for done in [self._threads.submit(session.run) for session in self._sessions]:
            done.result()

    def run(self) -> None:
        waiting = count()  # `next` is one step for all threads

        def answer(session: PeerSession) -> None:
            while next(waiting) < self._requests:
                session.run()

        if self._threads is None:
            answer(self._sessions[0])
            return
        for done in [self._threads.submit(answer, session) for session in self._sessions]:
            done.result()

    def parts_ms(self) -> Sequence[float]:
        """Of one run of the first, of a placement, while the others answer requests."""
        first, *others = self._sessions
        is_over = Event()

        def answer(session: PeerSession) -> None:
            while not is_over.is_set():
                session.run()

        answering = [self._threads.submit(answer, session) for session in others] if self._threads else []
        parts_ms = cast(Divisible, first).parts_ms
        try:
            return self._threads.submit(parts_ms).result() if self._threads else parts_ms()
        finally:
            is_over.set()
            for done in answering:
                done.result()

    def outputs(self) -> dict[str, Array]:
        """The first one's. BackendError where another one's are not what they are held to."""
        first, *others = [session.outputs() for session in self._sessions]
        for other in others if self._held_to is not None else ():
            if (reason := compare_all(other, first, self._held_to or {}).reason) is not None:
                raise BackendError(f"sessions beside each other answer differently: {reason}")
        return first


def open_placement_beside(
    graph_folder: Path, placement: Placement, inputs_file: Path, load: Load
) -> SessionsBeside:
    """As `open_placement`, so many sessions on the same kernels. Runs in a worker."""
    sessions = opened(graph_folder, placement, load.sessions)
    beside = SessionsBeside(sessions, load.requests, standards(load_stored(graph_folder)))
    beside.set_inputs(load_arrays(inputs_file))
    return beside


def open_peer_beside(name: str, model: Path, target: Target, inputs_file: Path, load: Load) -> SessionsBeside:
    """As `open_peer`, as the peer serves several requests at a time. Runs in a worker."""
    sessions = default_registry().peer(name).load_beside(model, target, load.sessions)
    beside = SessionsBeside(sessions, load.requests)
    beside.set_inputs(load_arrays(inputs_file))
    return beside
