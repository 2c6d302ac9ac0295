"""The worker's side of measuring: building, checking and timing one kernel after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from collage_core.backend import Backend, BackendKind
from collage_core.costs.job import MeasureItem
from collage_core.costs.record import UNAVAILABLE, CostRecord, Policy
from collage_core.costs.recording import Recording
from collage_core.costs.trial import Trial
from collage_core.device import Target
from collage_core.errors import BackendUnavailableError, Refusal
from collage_core.ir import Subgraph, load_stored
from collage_core.plugins import default_registry
from collage_core.worker import child_state

__all__ = ["Session", "ask_supported", "measure_item", "open_session"]

_SESSION = "measuring session"
_COLD_BYTES = 128 << 10
"""Constants of this size are worth measuring cold: reading them from memory takes some microseconds."""


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

    def measure(self, item: MeasureItem, protect: bool = True) -> CostRecord:
        """Build, check and time. An exception of the backend becomes a record "failed".

        protect: see `GuardedBuffers`.
        """
        start = time.perf_counter()
        try:
            record = self._measured(item, protect)
        except (BackendUnavailableError, ImportError, MemoryError, OSError) as error:
            return CostRecord(UNAVAILABLE, reason=f"{type(error).__name__}: {error}")
        except Exception as error:  # a vendor's library may raise anything; it costs this candidate
            return CostRecord(
                "failed", reason=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - start
            )
        return record

    def _measured(self, item: MeasureItem, protect: bool) -> CostRecord:
        if item.kind == "conversion":
            return self._conversion(item, protect)
        if (refusal := self.supported([item])[0]) is not None:
            return CostRecord("declined", reason=str(refusal))
        if item.variant is None:
            raise ValueError("a kernel item needs a variant")
        subgraph = self._subgraph(item)
        start = time.perf_counter()
        kernel = self.backend.build(subgraph, item.variant, self.target)
        build_s = time.perf_counter() - start
        twin = self.backend.build(subgraph, item.variant, self.target) if self._is_cold(subgraph) else None
        trial = Trial(
            kernel,
            [(v, self.values.load(v), f) for v, f in zip(subgraph.inputs, item.variant.inputs, strict=True)],
            [
                (v, self.values.load(v), f)
                for v, f in zip(subgraph.outputs, item.variant.outputs, strict=True)
            ],
            protect,
            twin,
        )
        return trial.record(self.policy, build_s)

    def _conversion(self, item: MeasureItem, protect: bool) -> CostRecord:
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
        source, destination = (item.value, value, item.source), (item.value, value, item.destination)
        trial = Trial(kernel, [source], [destination], protect)
        return trial.record(self.policy, build_s)

    def _is_cold(self, subgraph: Subgraph) -> bool:
        """Whether in an executable it finds constants cold that are worth it. Of reference kernels nobody
        needs to know it so well.
        """
        if not self.policy.evict_bytes or self.backend.info().kind is BackendKind.REFERENCE:
            return False
        return sum(self.graph.constants[v].nbytes for v in subgraph.constants) >= _COLD_BYTES

    def _subgraph(self, item: MeasureItem) -> Subgraph:
        return Subgraph(self.graph, item.nodes, item.outputs)


def open_session(graph_path: Path, values_path: Path, backend: str, target: Target, policy: Policy) -> None:
    """Make the session that the other functions use."""
    child_state[_SESSION] = Session(graph_path, values_path, backend, target, policy)


def ask_supported(items: Sequence[MeasureItem]) -> list[Refusal | None]:
    session: Session = child_state[_SESSION]
    return session.supported(items)


def measure_item(item: MeasureItem, protect: bool) -> CostRecord:
    session: Session = child_state[_SESSION]
    return session.measure(item, protect)
