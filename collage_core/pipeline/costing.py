"""Costs of all candidates and of the conversions between them: from the database where they are known,
measured where not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field, replace

from collage_core.backend import Backend, BackendKind
from collage_core.costs.database import CostDatabase
from collage_core.costs.fingerprint import cache_sizes_bytes, environment_of
from collage_core.costs.job import MeasureItem, MeasureJob
from collage_core.costs.limits import candidate_limit_s, worker_memory_bytes
from collage_core.costs.measure import run_job
from collage_core.costs.record import UNAVAILABLE, CostKey, CostRecord, Policy
from collage_core.ir import Graph
from collage_core.pipeline.in_place import InPlace, KernelKey, constants_ms, conversion_key, kernel_key
from collage_core.pipeline.progress import Progress
from collage_core.pipeline.workspace import Workspace
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.search.candidates import Candidate, CandidateSet
from collage_core.search.formulate import ConversionKey, needed_conversions
from collage_core.search.transitions import Transitions

__all__ = ["Costs", "collect_costs", "default_policy", "policy_for"]


_UNKNOWN = CostRecord(UNAVAILABLE)
_ITEMS_A_JOB = 16
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


@dataclass(slots=True)
class Costs:
    """What is known about every candidate, and the cheapest way to convert each type between each pair of
    formats.

    kernels and conversion_records: as measured alone, the latter of every backend that offers the conversion.
    in_place: how executables correct them. measured and cached: how many costs were taken now, and found in
    the database. measure_s: seconds spent measuring.
    """

    kernels: dict[KernelKey, CostRecord]
    conversion_records: dict[ConversionKey, dict[str, CostRecord]]
    measured: int = 0
    cached: int = 0
    measure_s: float = 0.0
    in_place: InPlace = field(default_factory=InPlace)

    def record_of(self, candidate: Candidate) -> CostRecord | None:
        """As far as is known, what it costs in an executable."""
        return self._record_of(_identity(candidate))

    def _record_of(self, key: KernelKey) -> CostRecord | None:
        record = self.kernels.get(key)
        return None if record is None else self.in_place.kernel(key, record)

    def priced(self, graph: Graph, placement: Placement, transitions: Transitions) -> Placement:
        """A placement at these costs, whatever costs it was found with. Where one of its parts has none (a
        group may run in the whole but not by itself) nothing is predicted of the whole.
        """
        groups = tuple(self._priced_group(graph, g) for g in placement.groups)
        conversions = tuple(self._priced_conversion(graph, c) for c in placement.conversions)
        priced = replace(placement, groups=groups, conversions=conversions, predicted_ms=None, terms_ms={})
        if any(g.cost_ms is None for g in groups) or any(c.cost_ms is None for c in conversions):
            return priced
        constants = list(constants_ms(graph, priced, transitions))
        converted = [part for part, _, _ in constants if isinstance(part, Conversion)]
        terms_ms = {
            "kernels": math.fsum(g.cost_ms or 0.0 for g in groups),
            "conversions": math.fsum(
                (c.cost_ms or 0.0) + transitions.group_ms.get(c.backend, 0.0) for c in converted
            ),
            "groups": math.fsum(ms for part, ms, _ in constants if isinstance(part, Group)),
            "crossings": math.fsum(ms for _, _, ms in constants),
        }
        return replace(priced, predicted_ms=math.fsum(terms_ms.values()), terms_ms=terms_ms)

    def _priced_group(self, graph: Graph, group: Group) -> Group:
        if group.backend == VIEW:
            return replace(group, cost_ms=0.0, spread_ms=0.0)
        record = self._record_of(kernel_key(graph, group)) or _UNKNOWN
        return replace(group, cost_ms=record.median_ms, spread_ms=record.spread_ms)

    def _priced_conversion(self, graph: Graph, conversion: Conversion) -> Conversion:
        key, backend = conversion_key(graph, conversion), conversion.backend
        alone = self.conversion_records.get(key, {}).get(backend, _UNKNOWN)
        return replace(conversion, cost_ms=self.in_place.conversion(key, backend, alone).median_ms)

    def add(self, more: Costs) -> None:
        """What has been measured or looked up since."""
        self.kernels |= more.kernels
        self.conversion_records |= more.conversion_records
        self.measured += more.measured
        self.cached += more.cached
        self.measure_s += more.measure_s

    def converters(
        self, backends: Iterable[str] | None = None, transitions: Transitions | None = None
    ) -> dict[ConversionKey, tuple[str, float]]:
        """For each possible conversion the backend (of those named, or of all) that is cheapest in an
        executable, and its own cost in ms.
        """
        allowed = None if backends is None else set(backends)
        group_ms = (transitions or Transitions()).group_ms
        result = {}
        for key, records in self.conversion_records.items():
            offers = [
                (r.median_ms + group_ms.get(b, 0.0), b, r.median_ms)
                for b, alone in records.items()
                if (r := self.in_place.conversion(key, b, alone)).ok
                and r.median_ms is not None
                and (allowed is None or b in allowed)
            ]
            if offers:
                _, backend, cost_ms = min(offers)
                result[key] = (backend, cost_ms)
        return result


def collect_costs(
    candidates: CandidateSet,
    backends: Mapping[str, Backend],
    database: CostDatabase,
    workspace: Workspace,
    policy: Policy,
    progress: Progress,
    executor: Executor | None = None,
    plugins: Sequence[str] = (),
) -> Costs:
    """Look up every cost that the search may need, and measure those that are missing, backend by backend.

    Each is stored as soon as it is measured, so that an interrupted run loses nothing. `executor` carries
    jobs of up to 16 measurements where given, whose costs are stored when the job is done; otherwise they
    run here, which is to say in workers that this process supervises. plugins: modules that bring backends
    besides the installed packages.
    """
    costs = Costs({}, {})
    collector = _Collector(
        candidates, backends, database, workspace, policy, progress, executor, costs, tuple(plugins)
    )
    collector.collect_kernels()
    collector.collect_conversions()
    return costs


@dataclass(slots=True)
class _Collector:
    candidates: CandidateSet
    backends: Mapping[str, Backend]
    database: CostDatabase
    workspace: Workspace
    policy: Policy
    progress: Progress
    executor: Executor | None
    costs: Costs
    plugins: tuple[str, ...]
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    records: dict[str, CostRecord] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)

    def collect_kernels(self) -> None:
        unique: dict[str, dict[KernelKey, Candidate]] = {}
        # Rivals (the same operator alone, fused, in other formats) are measured one after the other: the
        # speed of a machine drifts over minutes, by more than what tells them apart.
        position = self.candidates.graph.positions
        for c in sorted(self.candidates.candidates, key=lambda c: position[c.subgraph.nodes[0].id]):
            if c.backend != VIEW:
                unique.setdefault(c.backend, {}).setdefault(_identity(c), c)
        wanted = {
            name: [
                (identity, self._key(name, "kernel", identity[0], identity[1]), c)
                for identity, c in found.items()
            ]
            for name, found in unique.items()
        }
        missing: dict[str, list[tuple[CostKey, MeasureItem]]] = {}
        for name, entries in wanted.items():
            for i, (_, key, c) in enumerate(entries):
                if not self._known(key):
                    item = MeasureItem.kernel(i, [n.id for n in c.subgraph.nodes], c.variant)
                    missing.setdefault(name, []).append((key, item))
        self._measure("measuring kernels", missing)
        for entries in wanted.values():
            for identity, key, _ in entries:
                if (record := self.records.get(key.digest)) is not None:
                    self.costs.kernels[identity] = record

    def collect_conversions(self) -> None:
        graph, target = self.candidates.graph, self.candidates.target
        feasible = [
            c for c in self.candidates.candidates if c.backend == VIEW or _is_ok(self.costs.record_of(c))
        ]
        wanted: list[tuple[ConversionKey, str, CostKey]] = []
        missing: dict[str, list[tuple[CostKey, MeasureItem]]] = {}
        for (type, source, destination), value in needed_conversions(graph, feasible).items():
            for name, backend in self.backends.items():
                try:
                    if not backend.converts(type, source, destination, target):
                        continue
                except Exception as error:  # a plugin may raise anything; it costs this conversion
                    reason = f"it failed to say whether it converts: {error.__class__.__name__}: {error}"
                    offers = self.costs.conversion_records.setdefault((type, source, destination), {})
                    offers[name] = CostRecord("failed", reason=reason)
                    continue
                key = self._key(name, "conversion", str(type), f"{source} -> {destination}")
                wanted.append(((type, source, destination), name, key))
                if not self._known(key):
                    item = MeasureItem.conversion(len(wanted), value, source, destination)
                    missing.setdefault(name, []).append((key, item))
        self._measure("measuring conversions", missing)
        for conversion, name, key in wanted:
            if (record := self.records.get(key.digest)) is not None:
                self.costs.conversion_records.setdefault(conversion, {})[name] = record

    def _known(self, key: CostKey) -> bool:
        record = self.database.get(key)
        if record is None:
            return False
        self.costs.cached += 1
        self.records[key.digest] = record
        return True

    def _key(self, backend: str, kind: str, structure: str, variant: str) -> CostKey:
        owner = self.backends[backend]
        if backend not in self.environments:
            self.environments[backend] = environment_of(owner, self.candidates.target)
        return CostKey(
            kind, structure, variant, backend, self.environments[backend], policy_for(owner, self.policy)
        )

    def _measure(self, phase: str, missing: Mapping[str, list[tuple[CostKey, MeasureItem]]]) -> None:
        total = sum(map(len, missing.values()))
        if not total:
            return
        start = time.monotonic()
        self.progress.phase(phase, total)
        taken: list[CostRecord] = []
        pending: dict[Future[list[tuple[int, CostRecord]]], dict[int, CostKey]] = {}
        for name, entries in missing.items():
            keys = {item.index: key for key, item in entries}
            items = [item for _, item in entries]
            if self.executor is None:

                def keep(index: int, record: CostRecord, keys: Mapping[int, CostKey] = keys) -> None:
                    taken.append(self._keep(keys[index], record))

                run_job(self._job(name, items), keep, self.progress.note)
                continue
            for first in range(0, len(items), _ITEMS_A_JOB):
                job = self._job(name, items[first : first + _ITEMS_A_JOB])
                pending[self.executor.submit(run_job, job)] = keys
        for future in as_completed(pending):
            taken += [self._keep(pending[future][index], record) for index, record in future.result()]
        preempted = sum(int(str(r.details.get("preempted_runs", 0))) for r in taken)
        if preempted > _BUSY * sum(r.runs for r in taken):
            self.progress.note(
                f"this machine is busy: other processes disturbed {preempted} timed runs; for costs to be "
                "trusted, prune these (collage costs prune) and measure while it is idle"
            )
        self.costs.measure_s += time.monotonic() - start

    def _job(self, backend: str, items: Sequence[MeasureItem]) -> MeasureJob:
        return MeasureJob(
            self.workspace.graph_folder,
            self.workspace.recording.directory,
            backend,
            self.candidates.target,
            policy_for(self.backends[backend], self.policy),
            tuple(items),
            self.plugins,
            candidate_limit_s(),
            worker_memory_bytes(),
        )

    def _keep(self, key: CostKey, record: CostRecord) -> CostRecord:
        self.records[key.digest] = record
        if record.status != UNAVAILABLE:  # which says nothing about the candidate: the next run tries again
            self.database.put(key, record)
            self.costs.measured += 1
        self.progress.step(key.backend)  # what is told is kept already
        if record.status in ("crashed", "timeout", UNAVAILABLE):
            self._note_once(f"{key.backend}: {record.reason}")
        return record

    def _note_once(self, text: str) -> None:
        if text not in self.noted:
            self.noted.add(text)
            self.progress.note(text)


def _identity(candidate: Candidate) -> KernelKey:
    return candidate.subgraph.key, str(candidate.variant), candidate.backend


def _is_ok(record: CostRecord | None) -> bool:
    return record is not None and record.ok
