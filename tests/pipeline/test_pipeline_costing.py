"""The ledger: what is asked for is measured and kept, as long as there is time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collage_core import CostDatabase, Target, Variant, plain_variant
from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.job import KernelItem, MeasureJob
from collage_core.costs.measure import OnRecord
from collage_core.costs.record import RACED_OUT, UNAVAILABLE, CostRecord, Policy
from collage_core.costs.reported import Reported
from collage_core.errors import Refusal
from collage_core.formats import Format, channels_last
from collage_core.ir import Graph, Subgraph, TensorType, from_model
from collage_core.measuring.in_place import KernelKey
from collage_core.measuring.ledger import Ledger
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Progress, Silent
from collage_core.plugins import Registry

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_KINDS = {"left": BackendKind.OPERATOR, "right": BackendKind.OPERATOR}
_OPS = ("Relu", "Neg", "Abs", "Exp")


class _Toy(Backend):
    def __init__(self, name: str) -> None:
        self.name = name

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, _KINDS[self.name], "1", None)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        raise NotImplementedError

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        return self.name == "left"


class _Worker:
    """In place of `Measuring`: everything takes 1 ms."""

    made: list[_Worker]

    def __init__(self, on_wait: Callable[[str], object], patience: float) -> None:
        self.jobs: list[MeasureJob] = []
        self.patience = patience
        self.is_closed = False
        self.made.append(self)

    def start(self, jobs: Sequence[MeasureJob]) -> None:
        """There is nothing to start."""

    def run(self, job: MeasureJob, on_record: OnRecord) -> None:
        self.jobs.append(job)
        for item in job.items:
            on_record(item.index, CostRecord("ok", 1.0, 0.1, 20))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[_Worker]:
    """Those that were started."""
    _Worker.made = []
    monkeypatch.setattr("collage_core.measuring.ledger.Measuring", _Worker)
    return _Worker.made


@pytest.fixture
def graph(parse: Parse) -> Graph:
    nodes = " ".join(f"[n{i}] v{i + 1} = {op}(v{i})" for i, op in enumerate(_OPS))
    return from_model(parse(f"(float[1,2,2,2] v0) => (float v4) {{ {nodes} }}"))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[CostDatabase]:
    with CostDatabase(tmp_path / "c.sqlite") as database:
        yield database


def _candidates(graph: Graph) -> CandidateSet:
    """Each node by each backend; by left channels last as well."""
    found = []
    for n in graph.nodes:
        subgraph = Subgraph(graph, [n.id])
        last = channels_last("float32", graph.shape_of(n.inputs[0]))
        found += [
            Candidate(subgraph, "left", plain_variant(subgraph), "pattern"),
            Candidate(subgraph, "left", Variant((last,), (last,)), "pattern"),
            Candidate(subgraph, "right", plain_variant(subgraph), "pattern"),
        ]
    return CandidateSet(graph, Target("cpu", 1), tuple(found), {}, _KINDS)


class _Noting(Silent):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class _Elsewhere:
    """In place of `reported`, on a machine with other `facts`: everything takes 1 ms, unless the backend's
    jobs are lost. asked: how many items each job had.
    """

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.loses = ""
        self.asked: list[int] = []

    def __call__(self, run: object, job: MeasureJob) -> Reported[list[tuple[int, CostRecord]]]:
        if job.backend == self.loses:
            raise ConnectionError("the node is gone")
        self.asked.append(len(job.items))
        found = [(item.index, CostRecord("ok", 1.0, 0.1, 20)) for item in job.items]
        return Reported({**environment_of(_Toy(job.backend), job.target), **self.facts}, found)


def _ledger(
    graph: Graph,
    database: CostDatabase,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Ledger:
    nowhere: Any = SimpleNamespace(graph_folder=Path(), recording=SimpleNamespace(directory=Path()))
    backends = {name: _Toy(name) for name in _KINDS}
    registry = Registry(entry_points=False)
    machine = Machine(backends, Target("cpu", 1), database, registry, progress or Silent(), executor)
    return Ledger(machine, nowhere, _candidates(graph), Policy(), **options)


def _kernels(graph: Graph) -> list[KernelKey]:
    return [c.kernel_key for c in _candidates(graph).candidates]


def test_nothing_is_measured_that_nobody_asks_for(
    graph: Graph, database: CostDatabase, workers: list[_Worker]
) -> None:
    ledger = _ledger(graph, database)
    assert set(ledger.unknown_kernels) == set(_kernels(graph))
    assert len(ledger.unknown_converters) == 2
    assert not workers
    ledger.measure_kernels("some", [])
    assert not workers
    asked = _kernels(graph)[:2]
    ledger.measure_kernels("some", [*asked, asked[0], ("of no candidate", "", "left")])
    assert ledger.costs.kernels.keys() == set(asked)
    assert [len(job.items) for job in workers[0].jobs] == [2]
    ledger.measure_kernels("some", asked)
    assert len(workers[0].jobs) == 1, "what is known is not measured again"
    assert ledger.counts() == {"offered": 14, "known": 0, "bounded_out": 12, "raced_out": 0, "measured": 2}


def test_what_was_measured_is_known_to_the_next(
    graph: Graph, database: CostDatabase, workers: list[_Worker]
) -> None:
    first = _ledger(graph, database)
    first.measure_kernels("some", _kernels(graph)[:5])
    first.measure_converters("some", list(first.unknown_converters)[:1])
    second = _ledger(graph, database)
    assert second.costs.kernels == first.costs.kernels
    assert second.costs.conversion_records == first.costs.conversion_records
    assert second.counts() == {"offered": 14, "known": 6, "bounded_out": 8, "raced_out": 0, "measured": 0}
    second.measure_all()
    assert len(second.unknown_kernels) == len(second.unknown_converters) == 0
    assert (second.costs.measured, second.costs.cached) == (8, 6)
    third = _ledger(graph, database)
    third.measure_all()
    assert (third.costs.measured, third.costs.cached) == (0, 14)
    assert len(workers) == 2, "none was started for nothing"


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_when_time_is_over_nothing_more_is_measured_and_what_was_is_kept(
    graph: Graph, database: CostDatabase, after: int
) -> None:
    ledger = _ledger(graph, database, time_is_over=lambda: len(database) >= after)
    ledger.measure_kernels("all", _kernels(graph))
    assert len(database) == len(ledger.costs.kernels) == after
    assert {c.record.median_ms for c in database.items()} <= {1.0}
    assert ledger.counts()["measured"] == ledger.costs.measured == after
    assert ledger.costs.kernels.keys() | set(ledger.unknown_kernels) == set(_kernels(graph))
    ledger.measure_kernels("more", _kernels(graph))
    ledger.measure_converters("more", ledger.unknown_converters)
    assert len(database) == after
    assert _ledger(graph, database).costs.kernels == ledger.costs.kernels
    ledger.measure_kernels("whatever it takes", _kernels(graph)[-2:], whatever=True)
    assert set(_kernels(graph)[-2:]) <= ledger.costs.kernels.keys()


@pytest.mark.usefixtures("workers")
def test_some_is_measured_whatever_it_takes(graph: Graph, database: CostDatabase) -> None:
    ledger = _ledger(graph, database, time_is_over=lambda: True)
    ledger.measure_kernels("whatever", _kernels(graph), whatever=True)
    assert not ledger.unknown_kernels
    further = Subgraph(graph, [n.id for n in graph.nodes[:2]])
    ledger.cost([Candidate(further, "right", plain_variant(further), "search")])
    assert (further.key, str(plain_variant(further)), "right") in ledger.costs.kernels


def test_what_is_enough_travels_with_each_item(
    graph: Graph, database: CostDatabase, workers: list[_Worker]
) -> None:
    ledger = _ledger(graph, database)
    kernels = _kernels(graph)
    enough_ms = {kernel: float(i) for i, kernel in enumerate(kernels)}
    ledger.measure_kernels("all", kernels, enough_ms=enough_ms.__getitem__)
    told = {
        (Subgraph(graph, item.nodes).key, str(item.variant), job.backend): item.enough_ms
        for job in workers[0].jobs
        for item in job.items
        if isinstance(item, KernelItem)
    }
    assert told == enough_ms


def test_one_worker_serves_to_the_end(graph: Graph, database: CostDatabase, workers: list[_Worker]) -> None:
    ledger = _ledger(graph, database, patience=0.1)
    for kernel in _kernels(graph):
        ledger.measure_kernels("one by one", [kernel])
    ledger.measure_converters("all", ledger.unknown_converters)
    (worker,) = workers
    assert worker.patience == 0.1
    assert not worker.is_closed
    ledger.close()
    assert worker.is_closed
    ledger.close()


@pytest.mark.usefixtures("workers")
def test_who_was_raced_out_is_counted(
    graph: Graph, database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(worker: _Worker, job: MeasureJob, on_record: OnRecord) -> None:
        for item in job.items:
            details = {RACED_OUT: True} if item.index % 3 == 0 else {}
            on_record(item.index, CostRecord("ok", 1.0, 0.1, 3, details=details))

    monkeypatch.setattr(_Worker, "run", run)
    ledger = _ledger(graph, database)
    ledger.measure_kernels("all", _kernels(graph))
    assert ledger.counts()["raced_out"] == 4
    assert _ledger(graph, database).counts()["raced_out"] == 4, "known ones, too"


@pytest.mark.usefixtures("workers")
def test_what_says_nothing_of_a_candidate_is_not_kept(
    graph: Graph, database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(worker: _Worker, job: MeasureJob, on_record: OnRecord) -> None:
        for item in job.items:
            on_record(item.index, CostRecord(UNAVAILABLE, reason="no disk"))

    monkeypatch.setattr(_Worker, "run", run)
    ledger = _ledger(graph, database)
    ledger.measure_kernels("all", _kernels(graph))
    assert not ledger.unknown_kernels, "not asked again by this one"
    assert len(database) == 0


@pytest.mark.usefixtures("workers")
def test_an_interrupt_keeps_what_was_measured(graph: Graph, database: CostDatabase) -> None:
    class Impatient(Silent):
        def step(self, detail: str = "") -> None:
            if len(database) == 3:
                raise KeyboardInterrupt

    ledger = _ledger(graph, database, Impatient())
    with pytest.raises(KeyboardInterrupt):
        ledger.measure_all()
    assert len(database) == 3
    assert _ledger(graph, database).counts()["known"] == 3


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> _Elsewhere:
    machine = _Elsewhere()
    monkeypatch.setattr("collage_core.measuring.ledger.reported", machine)
    return machine


def test_an_executor_is_given_batches_and_time_ends_it_too(
    graph: Graph, database: CostDatabase, elsewhere: _Elsewhere
) -> None:
    with ThreadPoolExecutor(1) as executor:
        ledger = _ledger(graph, database, executor=executor, time_is_over=lambda: len(database) >= 5)
        ledger.measure_all()
    assert sorted(elsewhere.asked) == [4, 8], "a job for each backend"
    assert len(database) == 5


def test_a_cost_is_the_machines_that_took_it(
    graph: Graph, database: CostDatabase, elsewhere: _Elsewhere
) -> None:
    """This run may use it; but what this machine takes nobody knows."""
    elsewhere.facts = {"cpu": "another"}
    progress = _Noting()
    with ThreadPoolExecutor(1) as executor:
        ledger = _ledger(graph, database, progress, executor=executor)
        ledger.measure_all()
    assert len(ledger.costs.kernels) == len(_kernels(graph))
    assert {c.key.environment["cpu"] for c in database.items()} == {"another"}
    assert [note for note in progress.notes if "another machine" in note and "cpu another" in note]
    assert len(progress.notes) == len(_KINDS), "each backend's is told once"
    assert not _ledger(graph, database).costs.cached


def test_a_job_that_is_lost_costs_its_candidates(
    graph: Graph, database: CostDatabase, elsewhere: _Elsewhere
) -> None:
    elsewhere.loses = "left"
    progress = _Noting()
    with ThreadPoolExecutor(1) as executor:
        ledger = _ledger(graph, database, progress, executor=executor)
        ledger.measure_all()
    statuses = {(backend, r.status) for (_, _, backend), r in ledger.costs.kernels.items()}
    assert statuses == {("left", UNAVAILABLE), ("right", "ok")}
    assert {c.key.backend for c in database.items()} == {"right"}, "the next run tries again"
    assert any("left" in note and "the node is gone" in note for note in progress.notes)
