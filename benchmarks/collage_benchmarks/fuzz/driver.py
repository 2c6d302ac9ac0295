"""Models through Collage in batches; what fails as a batch is taken apart until the model is found."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from collage_benchmarks.fuzz.describing import as_code
from collage_benchmarks.fuzz.joining import join, parts_named, split
from collage_benchmarks.fuzz.opinions import Opinions, all_values, ask
from collage_benchmarks.fuzz.placing import Placed, Supervised, place
from collage_benchmarks.fuzz.report import CRASHED, REFUSED, RIGHT, UNTOLD, WRONG, KernelFind, Outcome, Report
from collage_benchmarks.fuzz.shrinking import shrink
from collage_benchmarks.fuzz.sources import Sample
from collage_core.errors import CollageError, WorkerError

__all__ = ["BATCH", "Driver"]

BATCH = 20
"""Models that are joined and optimised as one: starting workers takes seconds, whatever they are to do."""

_ASKING_LIMIT_S = 120.0


@dataclass(slots=True)
class Driver:
    """Takes samples, fills a report. costs: the database's file. shrinking: whether what fails
    is made small. batch: how many models are one. told: called with each outcome. after_batch: with
    all so far."""

    costs: Path
    backends: Sequence[str] | None = None
    shrinking: bool = True
    batch: int = BATCH
    told: Callable[[Outcome], object] = lambda outcome: None
    after_batch: Callable[[Report], object] = lambda report: None
    report: Report = field(default_factory=Report)
    supervised: Supervised = field(default_factory=Supervised)

    def run(self, samples: Iterable[Sample]) -> Report:
        start = time.monotonic()
        for batch in _batches(samples, self.batch):
            asked = [(s, o) for s in batch if (o := self._opinions(s)) is not None]
            self._place(asked)
            self.report.seconds = time.monotonic() - start
            self.after_batch(self.report)
        self.supervised.close()
        return self.report

    def _opinions(self, sample: Sample) -> Opinions | None:
        """Both opinions, if the model is taken; else what became of it is told."""
        data = sample.model.SerializeToString()
        try:
            found = self.supervised.worker.call(ask, data, sample.inputs, timeout_s=_ASKING_LIMIT_S)
        except WorkerError as error:
            self._tell(sample, CRASHED, "opinions", str(error))
            return None
        if found.fault is not None:
            self._tell(sample, CRASHED, "passes", found.fault, found)
        elif found.refusal is not None:
            status = REFUSED if found.onnxruntime is not None else UNTOLD
            self._tell(sample, status, "passes", found.refusal, found)
        elif found.blame is not None:
            self._tell(sample, WRONG, "passes", found.blame, found)
        else:
            return found
        return None

    def _place(self, asked: Sequence[tuple[Sample, Opinions]]) -> None:
        if not asked:
            return
        try:
            placed = self._placed([s for s, _ in asked])
        except CollageError as error:
            self._divided(asked, REFUSED, f"{type(error).__name__}: {error}")
            return
        except Exception:
            self._divided(asked, CRASHED, traceback.format_exc())
            return
        if placed.failures or placed.passes:
            if len(asked) > 1:
                self._halves(asked)
                return
            sample, opinions = asked[0]
            if placed.passes:
                self._tell(sample, WRONG, "passes", placed.passes[0], opinions)
            else:
                name, reason = next(iter(placed.failures.items()))
                self._tell(sample, CRASHED, name, reason, opinions)
            self._keep(placed, asked)
            return
        self._keep(placed, asked)
        answers = {name: split(a, len(asked)) for name, a in placed.answers.items()}
        for i, (sample, opinions) in enumerate(asked):
            for name, parts in answers.items():
                if (why := opinions.why_wrong(parts[i])) is not None:
                    self._tell(sample, WRONG, name, why, opinions)
                    break
            else:
                self._tell(sample, RIGHT, "", "", opinions)

    def _placed(self, samples: Sequence[Sample]) -> Placed:
        model, inputs = join(samples)
        return place(model, inputs, self.supervised, self.backends, self.costs)

    def _divided(self, asked: Sequence[tuple[Sample, Opinions]], status: str, reason: str) -> None:
        if len(asked) == 1:
            self._tell(asked[0][0], status, "optimize", reason, asked[0][1])
            return
        named = parts_named(reason)
        if len(named) != 1:
            self._halves(asked)
            return
        guilty = named.pop()
        self._place([asked[guilty]])
        self._place([a for i, a in enumerate(asked) if i != guilty])

    def _halves(self, asked: Sequence[tuple[Sample, Opinions]]) -> None:
        half = len(asked) // 2
        self._place(asked[:half])
        self._place(asked[half:])

    def _keep(self, placed: Placed, asked: Sequence[tuple[Sample, Opinions]]) -> None:
        for f in placed.kernels:
            parts = parts_named(" ".join(f.values))
            sample = asked[parts.pop()][0].name if parts else "?"
            self.report.kernels.append(KernelFind(sample, f.backend, f.status, f.operators, f.reason, f.code))

    def _tell(
        self, sample: Sample, status: str, where: str, reason: str, opinions: Opinions | None = None
    ) -> None:
        outcome = Outcome(sample.name, status, tuple(sample.operators), where, reason)
        if opinions is not None and opinions.differing is not None:
            outcome = replace(outcome, differing=opinions.differing)
        if status in (WRONG, CRASHED):
            small = self._small(sample, outcome) if self.shrinking else sample
            outcome = replace(outcome, code=as_code(small.model, small.inputs))
        self.report.outcomes.append(outcome)
        self.told(outcome)

    def _small(self, sample: Sample, outcome: Outcome) -> Sample:
        """A part of a failing model that fails in the same way and at the same place."""
        try:
            data = sample.model.SerializeToString()
            values = self.supervised.worker.call(all_values, data, sample.inputs, timeout_s=_ASKING_LIMIT_S)
        except WorkerError:
            return sample

        def fails(part: Sample) -> bool:
            alone = Driver(self.costs, self.backends, False, supervised=self.supervised)
            if (opinions := alone._opinions(part)) is not None:
                alone._place([(part, opinions)])
            found = alone.report.outcomes[-1]
            return (found.status, found.place) == (outcome.status, outcome.place)

        return shrink(sample, values, fails)


def _batches(samples: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    """As many as `size` that speak one opset, as soon as they are there, and at the end the rest."""
    waiting: dict[int, list[Sample]] = {}
    for sample in samples:
        batch = waiting.setdefault(sample.opset, [])
        batch.append(sample)
        if len(batch) == size:
            yield waiting.pop(sample.opset)
    yield from waiting.values()
