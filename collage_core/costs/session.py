"""The worker's side of measuring: building, checking and timing one kernel after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collage_core.backend import Backend, Kernel
from collage_core.costs.check import compare
from collage_core.costs.guarded import GuardedBuffers
from collage_core.costs.job import MeasureItem
from collage_core.costs.record import CostRecord, Policy
from collage_core.costs.recording import Recording
from collage_core.costs.timing import time_bound
from collage_core.device import Target
from collage_core.errors import Refusal
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph
from collage_core.ir.onnx_io import load_stored
from collage_core.plugins import default_registry
from collage_core.worker import child_state

__all__ = ["Session", "ask_supported", "measure_item", "open_session"]

_SESSION = "measuring session"


class Session:
    """A graph, its recorded values and one backend, loaded in this process."""

    def __init__(
        self, graph_path: Path, values_path: Path, backend: str, target: Target, policy: Policy
    ) -> None:
        self.graph = load_stored(graph_path)
        self.values = Recording(values_path)
        self.backend: Backend = default_registry().backend(backend)
        self.target = target
        self.policy = policy
        self._refusals: dict[tuple[tuple[int, ...], tuple[str, ...] | None], Refusal | None] = {}

    def supported(self, items: Sequence[MeasureItem]) -> list[Refusal | None]:
        """For each kernel item None, or why the backend declines it. Each distinct subgraph is asked about
        once.
        """
        asked = {
            (i.nodes, i.outputs): self._subgraph(i)
            for i in items
            if (i.nodes, i.outputs) not in self._refusals
        }
        answers = self.backend.supported(list(asked.values()), self.target)
        self._refusals.update(zip(asked, answers, strict=True))
        return [self._refusals[i.nodes, i.outputs] for i in items]

    def measure(self, item: MeasureItem) -> CostRecord:
        """Build, check and time. An exception of the backend becomes a record "failed"."""
        start = time.perf_counter()
        try:
            record = self._measured(item)
        except Exception as error:  # a vendor's library may raise anything; it costs this candidate
            return CostRecord(
                "failed", reason=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - start
            )
        return record

    def _measured(self, item: MeasureItem) -> CostRecord:
        if item.kind == "conversion":
            return self._conversion(item)
        if (refusal := self.supported([item])[0]) is not None:
            return CostRecord("declined", reason=str(refusal))
        if item.variant is None:
            raise ValueError("a kernel item needs a variant")
        subgraph = self._subgraph(item)
        start = time.perf_counter()
        kernel = self.backend.build(subgraph, item.variant, self.target)
        build_s = time.perf_counter() - start
        return _Trial(
            kernel,
            [(v, self.values.load(v), f) for v, f in zip(subgraph.inputs, item.variant.inputs, strict=True)],
            [
                (v, self.values.load(v), f)
                for v, f in zip(subgraph.outputs, item.variant.outputs, strict=True)
            ],
        ).record(self.policy, build_s)

    def _conversion(self, item: MeasureItem) -> CostRecord:
        if item.source is None or item.destination is None:
            raise ValueError("a conversion item needs a source and a destination")
        type = self.graph.type_of(item.value)
        if not self.backend.converts(type, item.source, item.destination, self.target):
            return CostRecord(
                "declined", reason=f"it does not convert {type} from {item.source} to {item.destination}"
            )
        start = time.perf_counter()
        kernel = self.backend.build_conversion(type, item.source, item.destination, self.target)
        build_s = time.perf_counter() - start
        value = self.values.load(item.value)
        trial = _Trial(kernel, [(item.value, value, item.source)], [(item.value, value, item.destination)])
        return trial.record(self.policy, build_s)

    def _subgraph(self, item: MeasureItem) -> Subgraph:
        return Subgraph(self.graph, item.nodes, item.outputs)


_Operand = tuple[str, Array, Format]
"""A value's name, its recorded elements, and the format in which the kernel sees it."""


class _Trial:
    """A built kernel, bound to guarded buffers that hold the recorded inputs."""

    def __init__(self, kernel: Kernel, inputs: Sequence[_Operand], outputs: Sequence[_Operand]) -> None:
        self._kernel = kernel
        self._inputs = inputs
        self._outputs = outputs
        self._buffers = GuardedBuffers()
        self._sources = [self._buffers.array(value.shape, format) for _, value, format in inputs]
        self._results = [self._buffers.array(value.shape, format) for _, value, format in outputs]
        self._workspace = self._buffers.bytes(kernel.workspace_bytes)

    def record(self, policy: Policy, build_s: float) -> CostRecord:
        """Check, time, and check again: a kernel may be right once only."""
        self._fill()
        bound = self._kernel.bind(self._sources, self._results, self._workspace)
        details: dict[str, object] = {
            "build_s": round(build_s, 6),
            "workspace_bytes": self._kernel.workspace_bytes,
        }
        if code := bound():
            return CostRecord("failed", reason=f"the kernel returned error code {code!r}", details=details)
        error, wrong = self._verdict()
        if wrong is None:
            samples = time_bound(bound, self._sources, self._results, policy)
            last_error, wrong = self._verdict()
            error = _worst(error, last_error)
        if wrong is None:
            wrong = self._aliased()
        if wrong is not None:
            return CostRecord("wrong", error=error, reason=str(wrong), details=details)
        return CostRecord(
            "ok",
            median_ms=samples.median_ms,
            spread_ms=samples.spread_ms,
            runs=samples.runs,
            error=error,
            details=details,
        )

    def _fill(self) -> None:
        """Recorded values into the inputs, and into the outputs what no right kernel leaves there."""
        for (_, value, _), source in zip(self._inputs, self._sources, strict=True):
            source[...] = value
        for (_, value, _), result in zip(self._outputs, self._results, strict=True):
            if result.dtype.kind in "biu":
                result[...] = np.invert(value).astype(result.dtype)
            else:
                result[...] = np.nan

    def _verdict(self) -> tuple[float | None, Refusal | None]:
        """Worst error of the outputs, and what is wrong with them, the inputs or the memory around them."""
        if not self._buffers.intact:
            return None, Refusal("it wrote outside its buffers")
        for (name, value, _), source in zip(self._inputs, self._sources, strict=True):
            if not _same(source, value.astype(source.dtype, copy=False)):
                return None, Refusal(f"it changed its input {name!r}")
        return self._errors()

    def _errors(self) -> tuple[float | None, Refusal | None]:
        worst: float | None = 0.0
        for (name, value, _), result in zip(self._outputs, self._results, strict=True):
            error, wrong = compare(name, result, value)
            worst = _worst(worst, error)
            if wrong is not None:
                return worst, wrong
        return worst, None

    def _aliased(self) -> Refusal | None:
        """Run once for every output that says it may lie in an input's buffer, with it lying there."""
        for o, i in self._kernel.may_alias.items():
            (_, target, target_format), (_, source, source_format) = self._outputs[o], self._inputs[i]
            if target_format != source_format or target.shape != source.shape:
                continue
            self._fill()
            results = [self._sources[i] if k == o else r for k, r in enumerate(self._results)]
            if code := self._kernel.bind(self._sources, results, self._workspace)():
                return Refusal(
                    f"the kernel returned error code {code!r} when output {o} shared the buffer of input {i}"
                )
            name = self._outputs[o][0]
            _, wrong = compare(name, results[o], target)
            if wrong is not None:
                return Refusal(f"{wrong} when it shares the buffer of input {self._inputs[i][0]!r}")
        return None


def _worst(a: float | None, b: float | None) -> float | None:
    """The larger error; None, which no number describes, is worse than any."""
    return None if a is None or b is None else max(a, b)


def _same(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def open_session(graph_path: Path, values_path: Path, backend: str, target: Target, policy: Policy) -> None:
    """Make the session that the other two functions use."""
    child_state[_SESSION] = Session(graph_path, values_path, backend, target, policy)


def ask_supported(items: Sequence[MeasureItem]) -> list[Refusal | None]:
    session: Session = child_state[_SESSION]
    return session.supported(items)


def measure_item(item: MeasureItem) -> CostRecord:
    session: Session = child_state[_SESSION]
    return session.measure(item)
