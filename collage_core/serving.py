"""How requests that are asked at a time are answered."""

from __future__ import annotations

from dataclasses import dataclass

from collage_core.counted import counted
from collage_core.errors import CollageError

__all__ = ["MOST_AT_A_TIME", "Serving", "ways_to_serve"]

MOST_AT_A_TIME = 1024
"""Requests: a server that is asked more lets them wait."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Of `concurrency` requests that are asked at a time, `sessions` are answered beside each other, each on
    as many threads as its placement is for; the others wait.
    """

    concurrency: int
    sessions: int

    def __post_init__(self) -> None:
        if type(self.concurrency) is not int or not 1 <= self.concurrency <= MOST_AT_A_TIME:
            raise CollageError(f"concurrency must be 1 to {MOST_AT_A_TIME}, not {self.concurrency!r}")
        if type(self.sessions) is not int or not 1 <= self.sessions <= self.concurrency:
            raise CollageError(f"sessions must be 1 to {self.concurrency}, not {self.sessions!r}")

    @classmethod
    def of(cls, concurrency: int, threads: int, processors: int) -> Serving:
        """With sessions of so many threads, as many as there are processors for."""
        return cls(concurrency, min(concurrency, max(1, processors // threads)))

    def text(self, threads: int) -> str:
        """For people, of sessions of so many threads."""
        return f"{counted(self.sessions, 'session')} of {counted(threads, 'thread')}"


def ways_to_serve(concurrency: int, processors: int) -> dict[int, Serving]:
    """By threads of a session, what may be the best of them: with fewer threads there would be no more
    sessions. Most sessions first.
    """
    ways: dict[int, Serving] = {}
    for sessions in range(min(concurrency, processors), 0, -1):
        threads = processors // sessions
        ways.setdefault(threads, Serving(concurrency, sessions))
    return ways
