"""The machine that answers: what it knows from before, and what can be measured on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from collage_core.backend import Backend, BackendKind
from collage_core.costs.database import CostDatabase
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.host import named_variables
from collage_core.costs.limits import candidate_limit_s, worker_memory_bytes
from collage_core.costs.record import CostRecord
from collage_core.costs.reported import Reported, lost, reported
from collage_core.costs.roofline import Peaks, known_peaks, machine_peaks
from collage_core.costs.rounds import GoOn, Limits, Rounds, Turns, measure_rounds
from collage_core.costs.support import SupportJob, run_support
from collage_core.errors import WorkerError
from collage_core.ir import Node
from collage_core.measuring.end_to_end import Ran, record_of_outcome
from collage_core.measuring.entrants import Entrant
from collage_core.measuring.progress import Progress, Silent
from collage_core.measuring.workspace import Workspace
from collage_core.plugins import Registry, default_registry
from collage_core.target import Target

__all__ = ["RUNS_PER_TURN", "Machine"]

RUNS_PER_TURN = 3
"""At least, of each entrant that is run in turns."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Processors, the libraries that may take part, and what has been measured of them."""

    backends: Mapping[str, Backend]
    """Those that may take part, by name."""
    target: Target
    database: CostDatabase
    registry: Registry
    """Of all that is installed, `backends` among them."""
    progress: Progress
    """Told what is being done."""
    executor: Executor | None = None
    """Carries jobs that ask and measure to wherever they are run; None: here. What machines there have
    measured is kept as theirs.
    """

    @classmethod
    def of(
        cls,
        database: CostDatabase,
        backends: Iterable[Backend] | None = None,
        target: Target | None = None,
        *,
        registry: Registry | None = None,
        progress: Progress | None = None,
        executor: Executor | None = None,
    ) -> Machine:
        """With core's reference, so that every model can be placed. backends: all that are available and run
        on the target's devices where None. target: the whole processor where None. registry: of the installed
        packages where None. progress: nobody is told where None.
        """
        registry, target = registry or default_registry(), target or Target.default()
        if backends is None:
            backends = [b for b in registry.available() if {*b.info().devices} & {*target.devices}]
        chosen = {b.name: b for b in backends}
        reference = next(b for b in registry.backends.values() if b.info().kind is BackendKind.REFERENCE)
        chosen.setdefault(reference.name, reference)
        return cls(chosen, target, database, registry, progress or Silent(), executor)

    def remedy(self, name: str) -> str:
        """Whose fault something is, and what to do without that backend."""
        return f"({name} {self.backends[name].info().version}; to do without it: --exclude {name})"

    @property
    def converters(self) -> Mapping[str, Backend]:
        """As `Registry.converters`."""
        return self.registry.converters(self.backends, self.target)

    def of_kind(self, kind: BackendKind) -> list[str]:
        """Names of the backends of that kind."""
        return [name for name, b in self.backends.items() if b.info().kind is kind]

    def usable(self) -> list[str]:
        """Names of the backends for which a process could be started: of what nobody has measured it is not
        known yet.
        """
        return [name for name, b in self.backends.items() if _names_its_variables(b, self.target)]

    def environment(self, backend: str, device: str | None = None) -> dict[str, str]:
        """What a cost of that backend, taken here on that device, is valid for; see `environment_of`."""
        return environment_of(self.converters[backend], self.target, device, self.registry)

    def peaks(self) -> Peaks:
        """What its arithmetic and its memories reach: known, or measured in a second."""
        return machine_peaks(self.target, self.database, self.progress.note)

    def known_peaks(self) -> Peaks | None:
        """The same, where nothing has to be measured for it."""
        return known_peaks(self.target, self.database)

    def ask(self, backend: str, workspace: Workspace, nodes: Sequence[Node]) -> Reported[list[CostRecord]]:
        """Whether a graph library takes these nodes, each by itself: records without a time, in their
        order.
        """
        job = SupportJob(
            workspace.graph_folder,
            backend,
            self.target,
            tuple((n.id,) for n in nodes),
            self.registry.modules(),
            candidate_limit_s(),
            worker_memory_bytes(),
        )
        if self.executor is None:
            return Reported(self.environment(backend), run_support(job, self.progress.note))
        try:
            return self.executor.submit(reported, run_support, job).result()
        except Exception as error:  # an executor may lose a job, and raise anything; it costs this library
            return Reported(self.environment(backend), [lost(error)] * len(nodes))

    def run_in_turns(
        self,
        entrants: Sequence[Entrant],
        rounds: Rounds,
        limits: Limits | None = None,
        *,
        is_checked: bool = True,
        go_on: GoOn | None = None,
        on_round: Callable[[int], object] | None = None,
    ) -> dict[str, Ran]:
        """What each entrant has shown, by name (`measure_rounds`). is_checked: whether each one's answers are
        held to what the reference answers on the graph that it is about.
        """
        workspaces = {id(e.workspace): e.workspace for e in entrants}
        expected = {i: w.expected_outputs() if is_checked else {} for i, w in workspaces.items()}
        outcomes = measure_rounds(
            [e.contender() for e in entrants],
            rounds,
            Turns(RUNS_PER_TURN),
            limits,
            go_on=go_on,
            on_round=on_round,
            on_wait=self.progress.note,
        )
        records = {
            e.name: record_of_outcome(outcomes[e.name], expected[id(e.workspace)], e.held_to())
            for e in entrants
        }
        return {name: Ran(outcomes[name], record) for name, record in records.items()}


def _names_its_variables(backend: Backend, target: Target) -> bool:
    try:
        named_variables([backend], target)
    except WorkerError:  # measuring its kernels tells of it
        return False
    return True
