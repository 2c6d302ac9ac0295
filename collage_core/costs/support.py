"""Asking a library what it takes, in a supervised worker: a question that kills it costs that group only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collage_core import clock
from collage_core.costs.failures import infeasible
from collage_core.costs.host import Host, Hosted, hosted
from collage_core.costs.lock import measuring_lock
from collage_core.costs.record import UNAVAILABLE, CostRecord
from collage_core.errors import Refusal, WorkerError
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.worker import RemoteError

__all__ = ["SupportJob", "ask_each", "ask_supported", "run_support"]

_GROUP_S = 1.0
"""Time that each group of a batch may take beyond what a batch may take in any case."""
_NO_LIBRARY = frozenset(
    {"BackendUnavailableError", "ImportError", "MemoryError", "ModuleNotFoundError", "OSError"}
)
"""What is raised where nothing can be asked: it says nothing about the groups."""
_MAX_FAILURES = 3
"""A library that fails on so many groups one after the other, each by itself, is not asked any further."""


_Nodes = tuple[int, ...]
"""Ids of the nodes of a group."""


@dataclass(frozen=True, slots=True)
class SupportJob:
    """Groups of a stored graph (`ir.save_stored`) that one backend is asked about. Small and picklable: any
    executor may carry it.

    groups: node ids of each. plugins: modules that bring backends besides the installed packages. limit_s:
    for an answer. memory_limit_bytes: resident memory of the worker.
    """

    graph_path: Path
    backend: str
    target: Target
    groups: tuple[tuple[int, ...], ...]
    plugins: tuple[str, ...] = ()
    limit_s: float = 60.0
    memory_limit_bytes: int | None = None

    @property
    def device(self) -> None:
        """It is about the backend itself."""
        return None


def run_support(job: SupportJob, on_wait: Callable[[str], object] | None = None) -> list[CostRecord]:
    """For each group a record without a time: "ok", or what else a kernel's may be, with the reason.

    `UNAVAILABLE` where it could not be asked. Holds the machine's measuring lock (`on_wait`: see there).
    UnknownBackendError where there is no such backend.
    """
    loaded = job.graph_path, job.backend, job.target
    with measuring_lock(on_wait), Host(*loaded, job.plugins, job.memory_limit_bytes) as host:

        def ask(groups: Sequence[_Nodes]) -> Sequence[Refusal | None]:
            try:
                return host.call(_supported, groups, timeout_s=job.limit_s + _GROUP_S * len(groups))
            except WorkerError:
                host.kill()  # what one group has spoilt shall not be held against others
                raise

        return ask_each(ask, job.groups)


def ask_each(
    ask: Callable[[Sequence[_Nodes]], Sequence[Refusal | None]], groups: Sequence[_Nodes]
) -> list[CostRecord]:
    """As `run_support`, by way of `ask`, which asks about some of the groups in a worker; a WorkerError of it
    costs the group that is to blame.
    """
    return _Asking(ask).about(groups)


class _Asking:
    def __init__(self, ask: Callable[[Sequence[_Nodes]], Sequence[Refusal | None]]) -> None:
        self._ask = ask
        self._failures = 0

    def about(self, groups: Sequence[_Nodes]) -> list[CostRecord]:
        """All in one call; where that fails, each half by itself, so that the culprit is found."""
        if not groups:
            return []
        if self._failures >= _MAX_FAILURES:
            reason = f"not asked: it failed on {_MAX_FAILURES} groups one after the other"
            return [CostRecord(UNAVAILABLE, reason=reason) for _ in groups]
        start = clock.monotonic()
        try:
            answers = self._ask(groups)
        except WorkerError as error:
            record = infeasible(error)
            if isinstance(error, RemoteError) and error.type_name not in _NO_LIBRARY:
                record = replace(record, status="failed")
            if record.status == UNAVAILABLE:
                return [record for _ in groups]
            if len(groups) == 1:
                self._failures += 1
                return [record]
            middle = len(groups) // 2
            return self.about(groups[:middle]) + self.about(groups[middle:])
        self._failures = 0
        seconds = (clock.monotonic() - start) / len(groups)
        return [
            CostRecord(
                "ok" if a is None else "declined", seconds=seconds, reason=None if a is None else a.reason
            )
            for a in answers
        ]


def ask_supported(
    graph_path: Path, backend: str, target: Target, groups: Sequence[_Nodes]
) -> list[Refusal | None]:
    """What a backend says of groups of a stored graph, given as node ids. Runs in a worker."""
    return _answers(Hosted.opened(graph_path, backend, target), groups)


def _supported(groups: Sequence[_Nodes]) -> list[Refusal | None]:
    return _answers(hosted(), groups)


def _answers(here: Hosted, groups: Sequence[_Nodes]) -> list[Refusal | None]:
    return here.supported([Subgraph(here.graph, g) for g in groups])
