"""What is known of the costs of one graph's candidates, and what can be measured when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from collage_core import clock
from collage_core.backend import Backend, BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.fingerprint import cache_sizes_bytes
from collage_core.costs.job import ConversionItem, KernelItem, MeasureItem, MeasureJob
from collage_core.costs.limits import candidate_limit_s, worker_memory_bytes
from collage_core.costs.measure import Measuring, run_job
from collage_core.costs.processors import PATIENCE
from collage_core.costs.record import RACED_OUT, UNAVAILABLE, CostKey, CostRecord, Policy
from collage_core.costs.reported import Reported, lost, reported
from collage_core.errors import staying_alive
from collage_core.formats import device_of
from collage_core.ir import Graph
from collage_core.measuring.costing import Converter, Costs
from collage_core.measuring.in_place import KernelKey
from collage_core.measuring.machine import Machine
from collage_core.measuring.workspace import Workspace
from collage_core.placement import VIEW
from collage_core.runtime.origin import told_apart
from collage_core.search.formulate import needed_conversions

__all__ = ["Ledger", "collect_costs", "default_policy", "policy_for"]

_ITEMS_A_JOB = 16
_FEWEST_RUNS = 500
_BUSY = 0.1
"""Share of preempted runs above which a person is told that the machine is not to be measured on."""


def default_policy(graph: Graph) -> Policy:
    """Between two runs of a kernel an executable reads the constants of all others. So as much other memory
    is read before each timed run: a power of two, so that costs serve similar models, and twice the last
    cache at most. Nothing where the constants fit into half of the second, from which they are read as fast
    as they are used.
    """
    weights_bytes = sum(a.nbytes for a in graph.constants.values())
    sizes = cache_sizes_bytes()
    second, last = sizes[:2][-1], sizes[-1]
    if weights_bytes <= second // 2:
        return Policy()
    return Policy(evict_bytes=min(1 << (weights_bytes - 1).bit_length(), 2 * last))


def policy_for(backend: Backend, policy: Policy) -> Policy:
    """Reference kernels take seconds and are there to be replaced: a few runs tell how bad it is."""
    if backend.info().kind is BackendKind.REFERENCE:
        return replace(policy, warmup_runs=1, min_runs=2, max_runs=10, max_seconds=0.02)
    return policy


def collect_costs(
    machine: Machine, workspace: Workspace, candidates: CandidateSet, policy: Policy | None = None
) -> Costs:
    """Look up every cost that the search may need, and measure those that are missing, backend by backend.

    See `Ledger`.
    """
    with closing(Ledger(machine, workspace, candidates, policy)) as ledger:
        ledger.measure_all()
        return ledger.costs


_What = TypeVar("_What", KernelKey, Converter)
_Place = tuple[str, str]
"""A backend, and the device that works for it."""


@dataclass(slots=True)
class _Wanted(Generic[_What]):
    """Something whose cost may be asked for: its key in the database, and how to measure it, given an index
    and enough_ms.
    """

    what: _What
    device: str
    key: CostKey
    item: Callable[[int, float], MeasureItem]
    enough_ms: float = math.inf

    def numbered(self, index: int) -> MeasureItem:
        return self.item(index, self.enough_ms)


class _TimeIsOverError(Exception):
    """Nothing further is to be measured."""


class Ledger:
    """What is known of the costs of one graph's candidates, and what can be measured when it is asked for.

    Each cost is stored as soon as it is measured: an interrupted run loses nothing. The machine's executor
    carries jobs of up to 16 measurements, whose costs are stored when the job is done. Without one they run
    here, which is to say in workers that this process supervises, and keeps until `close`. policy:
    `default_policy` where None. time_is_over: asked after each measurement; once it says so nothing further
    is measured. patience: see `Processors`.
    """

    def __init__(
        self,
        machine: Machine,
        workspace: Workspace,
        candidates: CandidateSet,
        policy: Policy | None = None,
        time_is_over: Callable[[], bool] = lambda: False,
        patience: float = PATIENCE,
    ) -> None:
        self.candidates = candidates
        self.costs = Costs({}, {})
        self._machine = machine
        self._workspace = workspace
        self._policy = default_policy(candidates.graph) if policy is None else policy
        self._time_is_over = time_is_over
        self._patience = patience
        self._measuring: Measuring | None = None
        self._owners = machine.converters
        self._environments: dict[_Place, dict[str, str]] = {}
        self._noted: set[str] = set()
        self._runs = self._preempted_runs = 0
        self._measured = 0
        self._kernels: dict[KernelKey, _Wanted[KernelKey]] = {}
        self._converters: dict[Converter, _Wanted[Converter]] = {}
        self._want_kernels(candidates.candidates)
        self._want_converters()

    @property
    def unknown_kernels(self) -> Collection[KernelKey]:
        """Those without a record, in the order in which rivals lie next to each other."""
        return self._kernels.keys()

    @property
    def unknown_converters(self) -> Collection[Converter]:
        """Conversions without a record that some pair of candidates may need."""
        return self._converters.keys()

    def counts(self) -> dict[str, int]:
        """What has become of the kernels and conversions that are offered: known before, measured now (some
        of them in a few runs only: raced out), or neither, since they could not matter.
        """
        raced_out = sum(RACED_OUT in r.details for r in self.costs.kernels.values())
        known = len(self.costs.kernels) + sum(map(len, self.costs.conversion_records.values()))
        bounded_out = len(self._kernels) + len(self._converters)
        return {
            "offered": known + bounded_out,
            "known": known - self._measured,
            "bounded_out": bounded_out,
            "raced_out": raced_out,
            "measured": self._measured,
        }

    def measure_all(self) -> None:
        """All that is unknown: first the kernels, which tell which conversions are of use."""
        self.measure_kernels("measuring kernels", list(self._kernels))
        feasible = [
            c for c in self.candidates.candidates if c.backend == VIEW or _is_ok(self.costs.record_of(c))
        ]
        needed = needed_conversions(self.candidates.graph, feasible)
        self.measure_converters("measuring conversions", [c for c in self._converters if c[0] in needed])

    @property
    def time_is_over(self) -> bool:
        """Whether nothing further is to be measured."""
        return self._time_is_over()

    def measure_kernels(
        self,
        phase: str,
        keys: Iterable[KernelKey],
        *,
        whatever: bool = False,
        enough_ms: Callable[[KernelKey], float] = lambda key: math.inf,
    ) -> None:
        """Measure those of them that are unknown, as long as there is time, or whatever it takes. enough_ms:
        see `KernelItem`.
        """
        unknown = [k for k in dict.fromkeys(keys) if k in self._kernels]
        wanted = [replace(self._kernels[k], enough_ms=enough_ms(k)) for k in unknown]
        self._measure(phase, wanted, self._keep_kernel, whatever)

    def measure_converters(self, phase: str, keys: Iterable[Converter], *, whatever: bool = False) -> None:
        """The same with conversions."""
        wanted = [self._converters[k] for k in dict.fromkeys(keys) if k in self._converters]
        self._measure(phase, wanted, self._keep_converter, whatever)

    def cost(self, candidates: Iterable[Candidate]) -> None:
        """Look up or measure further candidates, which a search has made."""
        more = list(candidates)
        self._want_kernels(more)
        self.measure_kernels("measuring kernels", (c.kernel_key for c in more), whatever=True)

    def close(self) -> None:
        """End the workers."""
        if self._measuring is not None:
            self._measuring.close()
            self._measuring = None

    def _want_kernels(self, candidates: Iterable[Candidate]) -> None:
        # Rivals (the same operator alone, fused, in other formats) are measured one after the other: the
        # speed of a machine drifts over minutes, by more than what tells them apart.
        position = self.candidates.graph.positions
        for c in sorted(candidates, key=lambda c: position[c.subgraph.nodes[0].id]):
            what = c.kernel_key
            if c.backend == VIEW or what in self._kernels or what in self.costs.kernels:
                continue
            device = c.variant.device
            key = self._key(c.backend, device, "kernel", what[0], what[1])
            if (record := self._known(key)) is not None:
                self.costs.kernels[what] = record
            else:
                nodes, variant = tuple(n.id for n in c.subgraph.nodes), c.variant
                self._kernels[what] = _Wanted(
                    what,
                    device,
                    key,
                    lambda i, ms, n=nodes, v=variant: KernelItem(i, n, v, None, ms),  # type: ignore[misc]
                )

    def _want_converters(self) -> None:
        graph, target = self.candidates.graph, self._machine.target
        feasible = [
            c
            for c in self.candidates.candidates
            if c.backend == VIEW or (r := self.costs.record_of(c)) is None or r.ok
        ]
        for (type, source, destination), value in needed_conversions(graph, feasible).items():
            conversion = type, source, destination
            for name, backend in self._owners.items():
                try:
                    with staying_alive():
                        is_offered = backend.offers_conversion(type, source, destination, target)
                    if not is_offered:
                        continue
                except Exception as error:  # a plugin may raise anything; it costs this conversion
                    reason = f"it failed to say whether it converts: {error.__class__.__name__}: {error}"
                    self._keep_converter((conversion, name), CostRecord("failed", reason=reason))
                    continue
                device = device_of((source, destination))
                key = self._key(name, device, "conversion", str(type), f"{source} -> {destination}")
                if (record := self._known(key)) is not None:
                    self._keep_converter((conversion, name), record)
                else:
                    self._converters[conversion, name] = _Wanted(
                        (conversion, name),
                        device,
                        key,
                        lambda i, _, v=value, s=source, d=destination: ConversionItem(i, v, s, d),  # type: ignore[misc]
                    )

    def _keep_kernel(self, what: KernelKey, record: CostRecord) -> None:
        self.costs.kernels[what] = record
        self._kernels.pop(what, None)

    def _keep_converter(self, what: Converter, record: CostRecord) -> None:
        conversion, backend = what
        self.costs.conversion_records.setdefault(conversion, {})[backend] = record
        self._converters.pop(what, None)

    def _known(self, key: CostKey) -> CostRecord | None:
        record = self._machine.database.get(key)
        self.costs.cached += record is not None
        return record

    def _key(self, backend: str, device: str, kind: str, structure: str, variant: str) -> CostKey:
        place = backend, device
        if place not in self._environments:
            self._environments[place] = self._machine.environment(backend, device)
        policy = policy_for(self._owners[backend], self._policy)
        return CostKey(kind, structure, variant, backend, self._environments[place], policy)

    def _measure(
        self,
        phase: str,
        wanted: Sequence[_Wanted[_What]],
        keep: Callable[[_What, CostRecord], object],
        whatever: bool,
    ) -> None:
        if not wanted or (self.time_is_over and not whatever):
            return
        start = clock.monotonic()
        self._machine.progress.phase(phase, len(wanted))
        taken: list[CostRecord] = []
        of_place: dict[_Place, list[int]] = {}
        for i, w in enumerate(wanted):
            of_place.setdefault((w.key.backend, w.device), []).append(i)

        def on_record(index: int, record: CostRecord, environment: Mapping[str, str] | None = None) -> None:
            w = wanted[index]
            keep(w.what, record)
            taken.append(record)
            self._measured += 1
            self._store(w.key if environment is None else replace(w.key, environment=environment), record)
            if self.time_is_over and not whatever:
                raise _TimeIsOverError

        with suppress(_TimeIsOverError):
            if self._machine.executor is None:
                measuring = self._here()
                measuring.start([self._job(place, ()) for place in of_place])
                for place, indices in of_place.items():
                    measuring.run(self._job(place, [wanted[i].numbered(i) for i in indices]), on_record)
            else:
                for index, record, environment in self._elsewhere(self._machine.executor, wanted, of_place):
                    on_record(index, record, environment)
        self._runs += sum(r.runs for r in taken)
        self._preempted_runs += sum(int(str(r.details.get("preempted_runs", 0))) for r in taken)
        if self._runs >= _FEWEST_RUNS and self._preempted_runs > _BUSY * self._runs:
            self._note_once(
                "this machine is busy: other processes disturb what is timed; for costs to be "
                "trusted, prune these (collage costs prune --disturbed) and measure while it is idle"
            )
        self.costs.measure_s += clock.monotonic() - start

    def _here(self) -> Measuring:
        if self._measuring is None:
            self._measuring = Measuring(self._machine.progress.note, self._patience)
        return self._measuring

    def _elsewhere(
        self, executor: Executor, wanted: Sequence[_Wanted[_What]], of_place: Mapping[_Place, Sequence[int]]
    ) -> Iterable[tuple[int, CostRecord, Mapping[str, str]]]:
        """Indices, records, and the environment of each as the machine has it that took it."""
        pending: dict[Future[Reported[list[tuple[int, CostRecord]]]], tuple[_Place, list[int]]] = {}
        for place, indices in of_place.items():
            for first in range(0, len(indices), _ITEMS_A_JOB):
                batch = list(indices[first : first + _ITEMS_A_JOB])
                job = self._job(place, [wanted[i].numbered(i) for i in batch])
                pending[executor.submit(reported, run_job, job)] = place, batch
        for future in as_completed(pending):
            place, batch = pending[future]
            try:
                found = future.result()
            except Exception as error:  # an executor may lose a job, and raise anything; it costs these items
                record = lost(error)
                yield from ((i, record, self._environments[place]) for i in batch)
                continue
            if found.environment != self._environments[place]:
                self._note_once(
                    f"{place[0]}: measured on another machine or with other versions, "
                    f"and kept as theirs ({told_apart(found.environment, self._environments[place])})"
                )
            yield from ((i, record, found.environment) for i, record in found.result)

    def _job(self, place: _Place, items: Sequence[MeasureItem]) -> MeasureJob:
        backend, device = place
        return MeasureJob(
            self._workspace.graph_folder,
            self._workspace.recording.directory,
            backend,
            self._machine.target,
            policy_for(self._owners[backend], self._policy),
            tuple(items),
            self._machine.registry.modules(),
            candidate_limit_s(),
            worker_memory_bytes(),
            device,
        )

    def _store(self, key: CostKey, record: CostRecord) -> None:
        if record.status != UNAVAILABLE:  # which says nothing about the candidate: the next run tries again
            self._machine.database.put(key, record)
            self.costs.measured += 1
        self._machine.progress.step(key.backend)  # what is told is kept already
        if record.status in ("crashed", "timeout", UNAVAILABLE):
            remedy = self._machine.remedy(key.backend) if key.backend in self._machine.backends else ""
            self._note_once(f"{key.backend}: {record.reason} {remedy}".rstrip())

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._machine.progress.note(text)


def _is_ok(record: CostRecord | None) -> bool:
    return record is not None and record.ok
