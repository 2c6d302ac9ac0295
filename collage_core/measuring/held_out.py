"""How far placements are off on inputs by which nothing was chosen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Self

from collage_core.costs.check import largest_error
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.recording import reference_values, reference_worker
from collage_core.errors import WorkerError
from collage_core.formats import Array
from collage_core.measuring.end_to_end import end_to_end_environment
from collage_core.measuring.entrants import placement_entrant
from collage_core.measuring.machine import Machine
from collage_core.measuring.temporary import TemporaryFolder
from collage_core.measuring.workspace import Workspace
from collage_core.placement import Placement
from collage_core.runtime.session import answers_of, save_arrays
from collage_core.worker import Worker

__all__ = ["HELD_OUT", "HeldOut"]

HELD_OUT = "held out"
"""Kind of the records of these errors."""
_BUILD_LIMIT_S = 600.0


class HeldOut:
    """samples: inputs by name. What is run on them is run on the workspace's own, too. To be closed."""

    def __init__(
        self, machine: Machine, workspace: Workspace, samples: Sequence[Mapping[str, Array]]
    ) -> None:
        self._machine, self._workspace, self._samples = machine, workspace, (workspace.inputs, *samples)
        self._folder = TemporaryFolder()
        self._known: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.remove()

    def __len__(self) -> int:
        """How many are held out."""
        return len(self._samples) - 1

    def known_error_of(self, placement: Placement) -> float | None:
        """As `error_of`, where it has been run before; None where it has not."""
        if placement.digest not in self._known:
            record = self._machine.database.get(self._key(placement))
            if record is None:
                return None
            self._known[placement.digest] = math.inf if record.error is None else record.error
        return self._known[placement.digest]

    def error_of(self, placement: Placement) -> float:
        """max|difference from the reference| / max|the reference|, the worst output's on the worst sample;
        inf where it does not run. What was found before is looked up.
        """
        known = self.known_error_of(placement)
        if known is None:
            self._machine.database.put(self._key(placement), self._measured(placement))
            known = self.known_error_of(placement)
        return math.inf if known is None else known

    def _measured(self, placement: Placement) -> CostRecord:
        backends = self._machine.registry.available(placement.backends())
        variables = {k: v for b in backends for k, v in b.environment(placement.target).items()}
        arguments = self._workspace.graph_folder, placement, self._files
        try:
            with Worker(variables, plugins=self._machine.registry.modules()) as worker:
                answers = worker.call(answers_of, *arguments, timeout_s=_BUILD_LIMIT_S)
        except WorkerError as error:  # it costs this placement
            return CostRecord("failed", reason=f"{type(error).__name__}: {error}")
        errors = [
            largest_error(answer[v], expected[v])
            for answer, expected in zip(answers, self._expected, strict=True)
            for v in expected
        ]
        worst = max(errors, default=0.0)
        return (
            CostRecord("ok", error=worst)
            if worst < math.inf
            else CostRecord("wrong", reason="not comparable")
        )

    @cached_property
    def _files(self) -> list[str]:
        files = []
        for i, sample in enumerate(self._samples):
            path = self._folder.path / f"{i}.npz"
            save_arrays(path, sample)
            files.append(str(path))
        return files

    @cached_property
    def _expected(self) -> list[dict[str, Array]]:
        """The reference's answers."""
        with reference_worker() as worker:
            folder = self._workspace.graph_folder
            return [reference_values(folder, sample, worker=worker) for sample in self._samples]

    @cached_property
    def digest(self) -> str:
        """Of the samples that are held out."""
        digest = hashlib.sha256()
        for sample in self._samples[1:]:
            for name in sorted(sample):
                digest.update(f"{name} {sample[name].shape} ".encode() + sample[name].tobytes())
        return digest.hexdigest()[:16]

    def _key(self, placement: Placement) -> CostKey:
        machine = self._machine
        entrant = placement_entrant(self._workspace, HELD_OUT, placement, machine.registry)
        return CostKey(
            HELD_OUT,
            hashlib.sha256(f"{entrant.key} {self.digest}".encode()).hexdigest()[:32],
            "",
            "+".join(placement.backends()),
            end_to_end_environment(machine.target, machine.registry),
            Policy(),
        )
