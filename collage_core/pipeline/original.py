"""The model as it was given is the measure: what the passes make of it must answer the same.

Kernels and placements are compared with the normalised graph on the reference. What a pass got wrong would be
wrong for all of them alike, and nobody would see it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from collage_run.open_outputs import cut

from collage_core import clock
from collage_core.costs.check import Difference, compare_all, standards
from collage_core.costs.database import CostDatabase
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.recording import (
    disturbed_values,
    reference_environment,
    reference_values,
    reference_worker,
)
from collage_core.errors import ModelError, WorkerError
from collage_core.formats import Array
from collage_core.ir import Graph, save_stored
from collage_core.ir.digests import graph_digest
from collage_core.ir.passes import Pass, PassFault, run_passes
from collage_core.ir.static import require_static
from collage_core.measuring.progress import Progress
from collage_core.measuring.temporary import TemporaryFolder
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.reading import Reading
from collage_core.worker import Worker

__all__ = ["ORIGINAL", "OriginalCheck", "checked_workspace"]

ORIGINAL = "original"
"""Kind of the record that a model and what the passes made of it agree."""


@dataclass(frozen=True, slots=True)
class OriginalCheck:
    """The normalised graph beside the model as it was given, both on the reference, on the same inputs.

    error: max|difference| / max|original|, the worst of the outputs; None where nothing was compared, and
    `unchecked` says why. faults: passes that were left out. seconds: what running the original took; 0.0
    where an earlier run had found that they agree.
    """

    error: float | None
    faults: tuple[PassFault, ...] = ()
    unchecked: str | None = None
    seconds: float = 0.0


@contextmanager
def checked_workspace(
    reading: Reading, inputs: Mapping[str, Array] | None, database: CostDatabase, progress: Progress
) -> Iterator[tuple[Workspace, OriginalCheck]]:
    """A workspace whose graph answers what the original does: passes that change an answer are left out.

    reading: with an original. inputs: what both are run on; made up where None. That they agree is kept in
    `database`. ModelError where a pass is wrong, and the model cannot be placed without it.
    """
    original, passes, faults = reading.original, reading.passes, list(reading.faults)
    assert original is not None
    with ExitStack() as opened:
        workspace = opened.enter_context(Workspace(reading.graph, inputs))
        key = _key(original, workspace)
        known = database.get(key)
        if known is not None and known.ok:
            yield workspace, OriginalCheck(known.error, reading.faults)
            return
        progress.phase("checking the model as it was given")
        folder = TemporaryFolder()
        opened.callback(folder.remove)
        start = clock.monotonic()
        unchecked: str | None = None
        with reference_worker() as worker:  # which the recording shares: starting one takes longest
            try:
                given = _Given(original, workspace.inputs, folder.path, worker)
            except WorkerError as error:
                unchecked = f"the reference cannot run it: {error}"
            else:
                seconds = clock.monotonic() - start
                difference = _difference(given, workspace, worker)
        if unchecked is not None:
            yield workspace, OriginalCheck(None, reading.faults, unchecked)
            return
        while difference.reason is not None:
            fault = given.culprit(passes)
            if fault is None:
                raise ModelError(f"the passes together change the answer: {difference.reason}")
            progress.note(str(fault))
            faults.append(fault)
            passes = tuple(p for p in passes if p.name != fault.name)
            graph = _without(fault, original, passes)
            workspace = opened.enter_context(Workspace(graph, workspace.inputs))
            difference = _difference(given, workspace)
        if not faults:
            database.put(key, CostRecord("ok", error=difference.relative, seconds=seconds))
        yield workspace, OriginalCheck(difference.relative, tuple(faults), seconds=seconds)


class _Given:
    """The model as it was given, with its answers. WorkerError where the reference has none."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Array], folder: Path, worker: Worker) -> None:
        self._graph = graph
        self._inputs = inputs
        self._folder = folder
        self._answers = self._run(graph, "original", worker)
        self._disturbed = cache(partial(disturbed_values, folder / "original", inputs))

    def difference(self, answers: Mapping[str, Array]) -> Difference:
        if list(answers) != list(self._answers):
            return Difference(None, None, f"it returns {', '.join(answers)}")
        return compare_all(answers, self._answers, standards(self._graph, answers=self._disturbed))

    def culprit(self, passes: Sequence[Pass]) -> PassFault | None:
        """The first pass after which the answers are others, or there are none."""
        graph = self._graph
        for number, p in enumerate(passes):
            before, graph = graph, run_passes(graph, [p], _ignore)
            if graph is before:
                continue
            try:
                answers = cut(self._run(graph, str(number)), graph.open_outputs)
                reason = self.difference(answers).reason
            except WorkerError as error:
                reason = f"the reference cannot run what it makes: {error}"
            if reason is not None:
                return PassFault(p.name, f"it changes the answer: {reason}")
        return None

    def _run(self, graph: Graph, name: str, worker: Worker | None = None) -> dict[str, Array]:
        save_stored(graph, self._folder / name)
        return reference_values(self._folder / name, self._inputs, worker=worker)


def _difference(given: _Given, workspace: Workspace, worker: Worker | None = None) -> Difference:
    if worker is not None:
        # Where it dies, another may not: it has held the original's values before. So is asked again below.
        with suppress(WorkerError):
            workspace.record(worker)
    try:
        return given.difference(cut(workspace.expected_outputs(), workspace.graph.open_outputs))
    except WorkerError as error:
        return Difference(None, None, str(error))


def _without(fault: PassFault, original: Graph, passes: Sequence[Pass]) -> Graph:
    try:
        graph = run_passes(original, passes, _ignore)
        require_static(graph)
    except ModelError as error:
        raise ModelError(f"{fault}; without it: {error}") from None
    return graph


def _ignore(fault: PassFault) -> None:
    """A pass that fails after another was left out: it is left out as well."""


def _key(original: Graph, workspace: Workspace) -> CostKey:
    """Of the original and what the passes made of it, on these inputs, by this reference."""
    graphs = [graph_digest(original), graph_digest(workspace.graph), workspace.inputs_digest]
    structure = hashlib.sha256("\n".join(graphs).encode()).hexdigest()[:32]
    return CostKey(ORIGINAL, structure, "", "reference", reference_environment(), Policy())
