"""Running measuring jobs: the supervision of the worker process that builds, checks and times."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache

from collage_core import clock
from collage_core.costs.ahead import AheadCompiler
from collage_core.costs.failures import infeasible
from collage_core.costs.host import OPEN_LIMIT_S, Host
from collage_core.costs.job import KernelItem, MeasureItem, MeasureJob
from collage_core.costs.lock import measuring_lock
from collage_core.costs.processors import PATIENCE, Processors
from collage_core.costs.record import MOVED, RETAKEN, UNAVAILABLE, CostRecord
from collage_core.costs.session import ask_supported, open_session, prepare_item, release_item, time_item
from collage_core.errors import WorkerError
from collage_core.formats import CPU
from collage_core.worker import Worker, exit_cause

__all__ = ["MeasureItem", "MeasureJob", "Measuring", "run_job"]

OnRecord = Callable[[int, CostRecord], object]

_BAD_ACCESS = (exit_cause(-signal.SIGSEGV), exit_cause(-signal.SIGBUS))
_MAX_HANGS = 3
"""A backend whose first so many items have all hung is not waited for any longer."""


def run_job(
    job: MeasureJob, on_record: OnRecord | None = None, on_wait: Callable[[str], object] | None = None
) -> list[tuple[int, CostRecord]]:
    """Measure all items; (index, record) for each, in the job's order. `on_record` is called with each as
    soon as it is known.

    Starts a worker of its own and takes the machine's measuring lock for one item at a time (`on_wait`: see
    `measuring_lock` and `Processors`). Where the backend compiles ahead, many kernels are compiled in batches
    before they are measured (`AheadCompiler`). An item that raises, crashes, hangs or answers wrongly gets a
    record that says so, and the others go on, in a new worker if need be. An item that crashes or answers
    wrongly after others have run in its worker is tried once more in a new one: the fault may be theirs. On
    another device than the CPU that holds of whatever fails, for it may have been left broken. One
    that still dies of a bad memory access is run again in buffers that tell whether it writes outside them.
    """
    with closing(Measuring(on_wait)) as measuring:
        return measuring.run(job, on_record)


class Measuring:
    """Runs jobs as `run_job` does, one after the other, and keeps each backend's worker for its next one.

    A worker is stopped (SIGSTOP) while another backend measures. `close` ends them all. patience: see
    `Processors`.
    """

    def __init__(self, on_wait: Callable[[str], object] | None = None, patience: float = PATIENCE) -> None:
        # Once per sentence, not once per item.
        self._on_wait = None if on_wait is None else cache(on_wait)
        self._processors = Processors(self._on_wait, patience=patience)
        self._runs: dict[MeasureJob, _Run] = {}

    def start(self, jobs: Sequence[MeasureJob]) -> None:
        """Start what these will need and is not there, several at once. Who cannot be started tells when it
        is run.
        """
        runs = [run for run in map(self._run_of, jobs) if not run.alive]
        if len(runs) < 2:
            return
        with measuring_lock(self._on_wait), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            try:
                for _ in pool.map(_Run.start, runs):
                    pass
            except BaseException:  # Ctrl-C: nobody is waited for
                for run in runs:
                    run.interrupt()
                raise

    def _run_of(self, job: MeasureJob) -> _Run:
        kind = replace(job, items=())
        if kind not in self._runs:
            self._runs[kind] = _Run(kind, self._processors, self._on_wait)
        return self._runs[kind]

    def run(self, job: MeasureJob, on_record: OnRecord | None = None) -> list[tuple[int, CostRecord]]:
        """See `run_job`. Between two items is the time to raise something that ends it."""
        run = self._run_of(job)
        try:
            return run.all(job.items, on_record, self._on_wait)
        finally:
            run.pause()

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        self._runs.clear()
        self._processors.close()


class _Run:
    """One backend's worker, and what is known of how it behaves. job: without items."""

    def __init__(
        self, job: MeasureJob, processors: Processors, on_wait: Callable[[str], object] | None
    ) -> None:
        self._job = job
        self._ahead = AheadCompiler(job, on_wait=on_wait)
        self._processors = processors
        self._records: dict[int, CostRecord] = {}
        self._on_record: OnRecord | None = None
        self._host = Host(job.graph_path, job.backend, job.target, job.plugins, job.memory_limit_bytes)
        self._opened: Worker | None = None
        """The one with a session."""
        self._attempts_in_worker = 0
        self._hangs = 0
        self._answered = False
        self._unusable: CostRecord | None = None

    def all(
        self,
        items: Sequence[MeasureItem],
        on_record: OnRecord | None,
        on_wait: Callable[[str], object] | None,
    ) -> list[tuple[int, CostRecord]]:
        self._records, self._on_record = {}, on_record
        with measuring_lock(on_wait):
            self._ask(items)
        for item in self._ahead.in_batches([i for i in items if i.index not in self._records]):
            with measuring_lock(on_wait):
                self._measure(item)
        return [(i.index, self._records[i.index]) for i in items]

    def _ask(self, items: Sequence[MeasureItem]) -> None:
        """Ask the backend which kernels it declines. Where the question itself fails, each item is asked
        about when its turn comes.
        """
        kernels = [i for i in items if isinstance(i, KernelItem)]
        if not kernels:
            return
        start = clock.monotonic()
        try:
            worker = self._ready()
            answers = worker.call(
                ask_supported, kernels, timeout_s=self._job.item_limit_s + 0.1 * len(kernels)
            )
        except WorkerError:
            self._host.stop()
            return
        seconds = (clock.monotonic() - start) / len(kernels)
        for item, refusal in zip(kernels, answers, strict=True):
            if refusal is not None:
                self._keep(item, CostRecord("declined", reason=str(refusal), seconds=seconds))

    def _measure(self, item: MeasureItem) -> None:
        start = clock.monotonic()
        waited_s = self._processors.waited_s
        if self._hangs >= _MAX_HANGS and not self._answered:
            reason = (
                f"not tried: the first {_MAX_HANGS} all gave no answer within {self._job.item_limit_s:g} s"
            )
            self._keep(item, CostRecord(UNAVAILABLE, reason=reason))
            return
        record = self._attempt(item)
        blames_others = ("crashed", "wrong") if self._job.device == CPU else ("crashed", "wrong", "failed")
        if record.status in blames_others and self._attempts_in_worker > 1:
            record = self._attempt(item)
        if record.status == "crashed" and record.details.get("cause") in _BAD_ACCESS:
            record = self._explained(item, record)
        self._hangs += record.status == "timeout"
        self._answered |= record.status not in ("timeout", UNAVAILABLE)
        waited_s = self._processors.waited_s - waited_s
        self._keep(item, replace(record, seconds=clock.monotonic() - start - waited_s))

    def _explained(self, item: MeasureItem, crash: CostRecord) -> CostRecord:
        """The record of an item that crashes; where it does so outside its buffers, this is the reason."""
        again = self._attempt(item, protect=False)
        if again.status == "wrong":
            return replace(again, reason=f"{again.reason} ({crash.details['cause']})")
        if again.ok and self._attempt(item).status == "crashed":
            return replace(crash, reason=f"it reads outside its buffers: {crash.reason}")
        return crash

    def _attempt(self, item: MeasureItem, protect: bool = True) -> CostRecord:
        try:
            worker = self._ready()
            self._attempts_in_worker += 1
            record = worker.call(prepare_item, item, protect, timeout_s=self._job.item_limit_s)
            if record is None:
                record = self._timed(worker)
                worker.call(release_item, timeout_s=self._job.item_limit_s)
        except WorkerError as error:
            return self._unusable or infeasible(error)
        limit_bytes = self._job.memory_limit_bytes
        is_spoilt = record.status == "wrong" or (record.status == "failed" and self._job.device != CPU)
        if is_spoilt or (limit_bytes is not None and worker.memory_bytes > limit_bytes // 2):
            self._host.stop()  # what this item has spoilt or leaked shall not be held against the next
        return record

    def _timed(self, worker: Worker) -> CostRecord:
        """Of a prepared item. Again where the processors have been moved meanwhile: of work on another device
        they say nothing.
        """
        is_host = self._job.device == CPU
        for attempt in self._processors.attempts(worker, as_it_comes=not is_host):
            record = worker.call(time_item, timeout_s=self._job.item_limit_s)
            record = replace(record, details={**record.details, RETAKEN: attempt.number})
            if not record.ok:
                break
        worker.resume()
        if record.ok and attempt.moved and is_host:
            record = replace(record, details={**record.details, MOVED: True})
        return record

    def _ready(self) -> Worker:
        """A worker with an open session. A backend with which none can be opened is not tried again."""
        job = self._job
        if self._unusable is not None:
            raise WorkerError(self._unusable.reason)
        limit_s = max(job.item_limit_s, OPEN_LIMIT_S)
        try:
            worker = self._host.ready(limit_s)
            if worker is not self._opened:
                self._attempts_in_worker = 0
                worker.call(open_session, job.values_path, job.policy, timeout_s=limit_s)
                self._opened = worker
            return worker
        except WorkerError as error:
            self._host.stop()
            self._unusable = replace(infeasible(error), status=UNAVAILABLE)
            raise

    def _keep(self, item: MeasureItem, record: CostRecord) -> None:
        self._records[item.index] = record
        if self._on_record is not None:
            self._on_record(item.index, record)

    @property
    def alive(self) -> bool:
        """Whether its worker is there."""
        return self._host.alive

    def start(self) -> None:
        with suppress(WorkerError):
            self._ready()
        self.pause()

    def close(self) -> None:
        self._ahead.close()
        self._host.stop()

    def pause(self) -> None:
        self._host.pause()

    def interrupt(self) -> None:
        self._host.interrupt()
