"""Running measuring jobs: the supervision of the worker process that builds, checks and times."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from collage_core.backend import Backend
from collage_core.costs.job import MeasureItem, MeasureJob
from collage_core.costs.lock import measuring_lock
from collage_core.costs.record import UNAVAILABLE, CostRecord
from collage_core.costs.session import ask_supported, measure_item, open_session
from collage_core.errors import UnknownBackendError, WorkerError
from collage_core.plugins import Registry, default_registry
from collage_core.worker import Worker, WorkerCrash, WorkerTimeout

__all__ = ["MeasureItem", "MeasureJob", "run_job"]

OnRecord = Callable[[int, CostRecord], object]


def run_job(
    job: MeasureJob, on_record: OnRecord | None = None, on_wait: Callable[[str], object] | None = None
) -> list[tuple[int, CostRecord]]:
    """Measure all items; (index, record) for each, in the job's order. `on_record` is called with each as
    soon as it is known.

    Starts a worker of its own and takes the machine's measuring lock for one item at a time (`on_wait`: see
    `measuring_lock`). An item that raises, crashes, hangs or answers wrongly gets a record that says so, and
    the others go on, in a new worker if need be. An item whose worker crashes after others have run in it is
    tried once more in a new one: the fault may be theirs.
    """
    on_wait = None if on_wait is None else cache(on_wait)  # once per job, not once per item
    run = _Run(job, on_record)
    try:
        with measuring_lock(on_wait):
            run.ask()
        for item in job.items:
            if item.index not in run.records:
                with measuring_lock(on_wait):
                    run.measure(item)
    finally:
        run.stop()
    return [(i.index, run.records[i.index]) for i in job.items]


class _Run:
    """The state of one `run_job`."""

    def __init__(self, job: MeasureJob, on_record: OnRecord | None) -> None:
        self.records: dict[int, CostRecord] = {}
        self._job = job
        self._on_record = on_record
        self._environment = dict(_backend(job).environment(job.target))
        self._worker: Worker | None = None
        self._attempts_in_worker = 0
        self._unusable: CostRecord | None = None

    def ask(self) -> None:
        """Ask the backend which kernels it declines. Where the question itself fails, each item is asked
        about when its turn comes.
        """
        kernels = [i for i in self._job.items if i.kind == "kernel"]
        if not kernels:
            return
        start = time.monotonic()
        try:
            worker = self._ready()
            answers = worker.call(
                ask_supported, kernels, timeout_s=self._job.item_limit_s + 0.1 * len(kernels)
            )
        except WorkerError:
            self.stop()
            return
        seconds = (time.monotonic() - start) / len(kernels)
        for item, refusal in zip(kernels, answers, strict=True):
            if refusal is not None:
                self._keep(item, CostRecord("declined", reason=str(refusal), seconds=seconds))

    def measure(self, item: MeasureItem) -> None:
        start = time.monotonic()
        record = self._attempt(item)
        if record.status == "crashed" and self._attempts_in_worker > 1:
            record = self._attempt(item)
        self._keep(item, replace(record, seconds=time.monotonic() - start))

    def _attempt(self, item: MeasureItem) -> CostRecord:
        try:
            worker = self._ready()
            self._attempts_in_worker += 1
            record = worker.call(measure_item, item, timeout_s=self._job.item_limit_s)
        except WorkerError as error:
            return self._unusable or _infeasible(error)
        limit_bytes = self._job.memory_limit_bytes
        if limit_bytes is not None and worker.memory_bytes > limit_bytes // 2:
            self.stop()  # what this item has leaked shall not be held against the next
        return record

    def _ready(self) -> Worker:
        """A worker with an open session. A backend with which none can be opened is not tried again."""
        if self._worker is not None and self._worker.alive:
            return self._worker
        if self._unusable is not None:
            raise WorkerError(self._unusable.reason)
        job = self._job
        self._attempts_in_worker = 0
        self._worker = Worker(
            self._environment, plugins=job.plugins, memory_limit_bytes=job.memory_limit_bytes
        )
        try:
            self._worker.call(
                open_session,
                job.graph_path,
                job.values_path,
                job.backend,
                job.target,
                job.policy,
                timeout_s=job.item_limit_s,
            )
        except WorkerError as error:
            self._unusable = replace(_infeasible(error), status=UNAVAILABLE)
            raise
        return self._worker

    def _keep(self, item: MeasureItem, record: CostRecord) -> None:
        self.records[item.index] = record
        if self._on_record is not None:
            self._on_record(item.index, record)

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _infeasible(error: WorkerError) -> CostRecord:
    status = {WorkerCrash: "crashed", WorkerTimeout: "timeout"}.get(type(error), UNAVAILABLE)
    said = getattr(error, "output", "") or getattr(error, "traceback", "")
    return CostRecord(status, reason=str(error), details={"output": said} if said else {})


def _backend(job: MeasureJob) -> Backend:
    """The job's backend in this process: for its environment variables, which must not load its library."""
    try:
        return default_registry().backend(job.backend)
    except UnknownBackendError:
        if not job.plugins:
            raise
    return Registry([importlib.import_module(p) for p in job.plugins]).backend(job.backend)
