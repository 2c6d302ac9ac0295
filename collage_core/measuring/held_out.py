"""How far placements are off on inputs by which nothing was chosen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from collage_core.costs.check import largest_error
from collage_core.costs.host import named_variables
from collage_core.costs.lock import measuring_lock
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.recording import reference_environment, reference_values, reference_worker
from collage_core.errors import InputError, WorkerError
from collage_core.formats import Array
from collage_core.ir.randomness import random_values
from collage_core.measuring.end_to_end import end_to_end_environment
from collage_core.measuring.entrants import placement_entrant
from collage_core.measuring.machine import Machine
from collage_core.measuring.metric import Metric
from collage_core.measuring.temporary import TemporaryFolder
from collage_core.measuring.workspace import Workspace, digest_of_inputs
from collage_core.placement import Placement
from collage_core.plugins import Registry
from collage_core.runtime.session import answers_of, save_arrays
from collage_core.target import Target
from collage_core.worker import RemoteError, Worker

__all__ = ["HELD_OUT", "HeldOut", "Off", "held_out_environment", "of_others"]

HELD_OUT = "held out"
"""Kind of the records of these errors."""
_BUILD_LIMIT_S, _LEAST_LIMIT_S = 600.0, 10.0
_OF_OTHERS = "of_others"
_SPREADS, _MOST = 3.5, 100.0
"""So many standard deviations from the middle lies what a hundred further inputs hold, mostly: were errors
log-normal, in 83 of 100 cases, known from 17 inputs. The worst of five holds on a hundred others in 11 to 24.
Further than so many times the middle, as a logarithm, no error is told apart from any other.
"""


class Off(NamedTuple):
    """How far a placement is off from the reference. worst: on the inputs that it was run on. of_others: what
    a hundred others are likely to hold, where those were made up and no metric counts; else the worst, too.
    """

    worst: float
    of_others: float


_UNKNOWN = Off(math.inf, math.inf)


class HeldOut:
    """samples: inputs by name. What is run on them is run on the workspace's own, too. is_made_up: whether
    nobody gave them; what the reference cannot run is left out then. metric: says how far answers are off;
    max|difference| / max|expected|, the worst output's on the worst sample, where None. To be closed.

    Outputs that depend on random numbers are not looked at.
    """

    def __init__(
        self,
        machine: Machine,
        workspace: Workspace,
        samples: Sequence[Mapping[str, Array]],
        *,
        is_made_up: bool = True,
        metric: Metric | None = None,
    ) -> None:
        self.is_made_up = is_made_up
        self.metric = metric
        self._machine, self._workspace, self._samples = machine, workspace, tuple(samples)
        random = random_values(workspace.graph)
        self._outputs = tuple(v for v in workspace.graph.outputs if v not in random)
        self._folder = TemporaryFolder()
        self._known: dict[str, Off] = {}

    def close(self) -> None:
        self._folder.remove()

    def __len__(self) -> int:
        """How many are held out."""
        return len(self._samples)

    def check_metric(self, most: float) -> None:
        """InputError where a person's metric fails, or says of right answers that they are off by more."""
        if self.metric is None:
            return
        right = [self._workspace.expected_outputs()] * (1 + len(self))
        if (off := self._compared(right, right)).worst > most:
            told = f"{off.worst:g} for equal answers is more than {most:g}"
            raise InputError(f"metric {self.metric.name}: {told}")

    def known_error_of(self, placement: Placement) -> Off | None:
        """As `error_of`, where it has been run before; None where it has not."""
        if placement.digest not in self._known:
            record = self._machine.database.get(self._key(placement))
            if record is None:
                return None
            self._known[placement.digest] = _told(record)
        return self._known[placement.digest]

    def error_of(self, placement: Placement, limit_s: float = math.inf) -> Off:
        """How far it is off; inf where it does not run, not within the limit, or there is no time. What was
        found before is looked up.

        InputError names a sample that somebody gave and the reference cannot run, and a metric that fails.
        """
        if (known := self.known_error_of(placement)) is not None:
            return known
        if limit_s <= 0.0:
            return _UNKNOWN
        record = self._measured(placement, min(max(limit_s, _LEAST_LIMIT_S), _BUILD_LIMIT_S))
        if record is None:
            return _UNKNOWN
        self._machine.database.put(self._key(placement), record)
        self._known[placement.digest] = _told(record)
        return self._known[placement.digest]

    def _measured(self, placement: Placement, limit_s: float) -> CostRecord | None:
        """None where nothing was shown: another time it may run."""
        self._machine.progress.phase("running held-out inputs")
        expected = self._expected
        registry = self._machine.registry
        variables = named_variables(registry.available(placement.backends()), placement.target)
        arguments = self._workspace.graph_folder, placement, [self._files[i] for i in expected]
        try:
            with (
                measuring_lock(self._machine.progress.note),
                Worker(variables, plugins=registry.modules()) as worker,
            ):
                answers = worker.call(answers_of, *arguments, timeout_s=limit_s)
        except RemoteError as error:  # it costs this placement
            return CostRecord("failed", reason=f"{type(error).__name__}: {error}")
        except WorkerError as error:
            self._machine.progress.note(f"held-out inputs: {error}")
            return None
        off = self._compared(answers, list(expected.values()))
        if off.worst < math.inf:
            return CostRecord("ok", error=off.worst, details={_OF_OTHERS: off.of_others})
        return CostRecord("wrong", reason="an answer that cannot be compared with the reference's")

    def _compared(
        self, answers: Sequence[Mapping[str, Array]], expected: Sequence[Mapping[str, Array]]
    ) -> Off:
        """Of answers to each of the inputs."""
        if self.metric is None:
            pairs = zip(answers, expected, strict=True)
            errors = [max((largest_error(a[v], e[v]) for v in self._outputs), default=0.0) for a, e in pairs]
            worst = max(errors, default=0.0)
            return Off(worst, of_others(errors) if self.is_made_up else worst)
        found, right = (
            {v: np.stack([a[v] for a in of]) for v in self._outputs} for of in (answers, expected)
        )
        error = self.metric(found, right)
        return Off(error, error)

    @cached_property
    def _files(self) -> list[str]:
        """Of the workspace's inputs, and of the samples."""
        files = []
        for i, sample in enumerate((self._workspace.inputs, *self._samples)):
            path = self._folder.path / f"{i}.npz"
            save_arrays(path, sample)
            files.append(str(path))
        return files

    @cached_property
    def _expected(self) -> dict[int, dict[str, Array]]:
        """The reference's answers, by the number of the file."""
        found = {0: self._workspace.expected_outputs()}
        folder = self._workspace.graph_folder
        with reference_worker() as worker:
            for i, sample in enumerate(self._samples, 1):
                try:
                    found[i] = reference_values(folder, sample, worker=worker)
                except RemoteError as error:
                    if not self.is_made_up:
                        raise InputError(f"calibration: sample {i} cannot be run: {error}") from None
        return found

    @cached_property
    def digest(self) -> str:
        """Of the samples, and of what is looked at on them."""
        samples = (digest_of_inputs(self._workspace.graph, sample) for sample in self._samples)
        return " ".join([*samples, *([self.metric.digest] if self.metric else [])])

    def _key(self, placement: Placement) -> CostKey:
        machine = self._machine
        entrant = placement_entrant(self._workspace, HELD_OUT, placement, machine.registry)
        return CostKey(
            HELD_OUT,
            hashlib.sha256(f"{entrant.key} {self.digest}".encode()).hexdigest()[:32],
            "",
            "+".join(placement.backends()),
            held_out_environment(machine.target, machine.registry),
            Policy(),
        )


def held_out_environment(target: Target, registry: Registry | None = None) -> dict[str, str]:
    """The environment of such a record's key: as of what runs end to end, and the reference's."""
    return {**end_to_end_environment(target, registry), **reference_environment()}


def _told(record: CostRecord) -> Off:
    if record.error is None:
        return _UNKNOWN
    return Off(record.error, float(str(record.details.get(_OF_OTHERS, record.error))))


def of_others(errors: Sequence[float]) -> float:
    """What a hundred other inputs are likely to hold, given what some are off by: so many standard
    deviations above the middle one, by those above it. Rounding is amplified by many factors on its way, so
    errors are about log-normal; those of lucky inputs say nothing of the worst.
    """
    logs = sorted(math.log(error) for error in errors if error > 0.0)
    if not logs or logs[-1] == math.inf:
        return max(errors, default=0.0)
    middle = median(logs)
    above = math.fsum((log - middle) ** 2 for log in logs if log > middle)
    spread = math.sqrt(above / max(1.0, (len(logs) - 1) / 2))
    return max(*errors, math.exp(middle + min(_SPREADS * spread, _MOST)))
