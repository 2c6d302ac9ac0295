"""The worker's side of measuring: building, checking and timing one kernel after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from collage_core import clock
from collage_core.backend import BackendKind, exact_values, rounded_to
from collage_core.costs.check import Standard, Within, rounded_answers, standards, tolerance
from collage_core.costs.host import Hosted, hosted
from collage_core.costs.job import ConversionItem, KernelItem, MeasureItem
from collage_core.costs.record import UNAVAILABLE, CostRecord, Policy
from collage_core.costs.recording import Recording
from collage_core.costs.trial import Trial
from collage_core.devices import Station
from collage_core.errors import BackendUnavailableError, DeclinedError, Refusal
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph
from collage_core.plugins import default_registry
from collage_core.worker import child_state

__all__ = ["Session", "ask_supported", "open_session", "prepare_item", "release_item", "time_item"]

_Answer = TypeVar("_Answer")

_SESSION = "measuring session"
_COLD_BYTES = 128 << 10
"""Constants of this size are worth measuring cold: reading them from memory takes some microseconds."""
_MOVED = 1e-30
"""Of the largest element, how far off a value may be that a conversion only moves: subnormal numbers may be
lost.
"""


class Session:
    """What this process has loaded, with the recorded values of the graph."""

    def __init__(self, loaded: Hosted, values_path: Path, policy: Policy) -> None:
        self._loaded = loaded
        self.graph, self.backend, self.target = loaded.graph, loaded.backend, loaded.target
        self.values = Recording(values_path)
        self.policy = policy
        self._refusals: dict[tuple[tuple[int, ...], tuple[str, ...] | None], Refusal | None] = {}
        self._prepared: tuple[Trial, float, float] | None = None
        self._rounded: dict[object, Mapping[str, Array]] = {}

    def supported(self, items: Sequence[KernelItem]) -> list[Refusal | None]:
        """For each kernel item None, or why the backend declines it. Each distinct subgraph is asked about
        once.
        """
        asked = {
            (i.nodes, i.outputs): self._subgraph(i)
            for i in items
            if (i.nodes, i.outputs) not in self._refusals
        }
        answers = self._loaded.supported(list(asked.values()))
        self._refusals.update(zip(asked, answers, strict=True))
        return [self._refusals[i.nodes, i.outputs] for i in items]

    def prepare(self, item: MeasureItem, protect: bool = True) -> CostRecord | None:
        """Build it, so that `timed` can follow, and then `release`. A record where that is not to be; an
        exception of the backend becomes one with status "failed".

        protect: see `Device.fenced`.
        """
        return self._unless_it_raises(lambda: self._prepare(item, protect))

    def timed(self) -> CostRecord:
        """Check and time what has been prepared; may be asked for again."""
        if self._prepared is None:
            raise ValueError("nothing has been prepared")
        trial, build_s, enough_ms = self._prepared
        return self._unless_it_raises(lambda: trial.record(self.policy, build_s, enough_ms))

    def release(self) -> None:
        """Let go of what has been prepared. A library that fails in this fails for the item that it is of."""
        self._prepared = None

    def _unless_it_raises(self, work: Callable[[], _Answer]) -> _Answer | CostRecord:
        start = clock.monotonic()
        try:
            return work()
        except (BackendUnavailableError, ImportError, MemoryError, OSError) as error:
            return CostRecord(UNAVAILABLE, reason=f"{type(error).__name__}: {error}")
        except DeclinedError as error:
            return CostRecord("declined", reason=str(error), seconds=clock.monotonic() - start)
        except Exception as error:  # a vendor's library may raise anything; it costs this candidate
            return CostRecord(
                "failed", reason=f"{type(error).__name__}: {error}", seconds=clock.monotonic() - start
            )

    def _prepare(self, item: MeasureItem, protect: bool) -> CostRecord | None:
        if isinstance(item, ConversionItem):
            return self._prepare_conversion(item, protect)
        if (refusal := self.supported([item])[0]) is not None:
            return CostRecord("declined", reason=str(refusal))
        subgraph = self._subgraph(item)
        start = clock.monotonic()
        kernel = self.backend.build(subgraph, item.variant, self.target)
        build_s = clock.monotonic() - start
        twin = self.backend.build(subgraph, item.variant, self.target) if self._is_cold(subgraph) else None
        inputs = {v: self.values.load(v) for v in subgraph.inputs}
        trial = Trial(
            kernel,
            [(v, a, f) for (v, a), f in zip(inputs.items(), item.variant.inputs, strict=True)],
            [
                (v, self.values.load(v), f)
                for v, f in zip(subgraph.outputs, item.variant.outputs, strict=True)
            ],
            self._stations((*item.variant.inputs, *item.variant.outputs), protect),
            twin,
            standards(
                self.graph,
                subgraph.nodes,
                rounded_to(subgraph, item.variant),
                partial(self._rounded_answers, item, inputs),
            ),
        )
        self._prepared = trial, build_s, item.enough_ms
        return None

    def _prepare_conversion(self, item: ConversionItem, protect: bool) -> CostRecord | None:
        type = self.graph.type_of(item.value)
        if not self.backend.offers_conversion(type, item.source, item.destination, self.target):
            return CostRecord(
                "declined", reason=f"it does not convert {type} from {item.source} to {item.destination}"
            )
        start = clock.monotonic()
        kernel = self.backend.build_conversion(type, item.source, item.destination, self.target)
        build_s = clock.monotonic() - start
        held_to: Standard = max(item.source.dtype, item.destination.dtype, key=tolerance)
        if item.source.dtype == item.destination.dtype:
            held_to = Within(_MOVED)
        recorded = self.values.load(item.value)
        value = recorded.astype(item.source.dtype).astype(recorded.dtype)
        source, destination = (item.value, value, item.source), (item.value, value, item.destination)
        stations = self._stations((item.source, item.destination), protect)
        trial = Trial(kernel, [source], [destination], stations, None, {item.value: held_to})
        self._prepared = trial, build_s, math.inf
        return None

    def _stations(self, formats: Iterable[Format], protect: bool) -> dict[str, Station]:
        return Station.for_formats(formats, default_registry().device, protect)

    def _rounded_answers(
        self, item: KernelItem, inputs: Mapping[str, Array], dtype: str
    ) -> Mapping[str, Array]:
        """As of `check.rounded_answers`; those of the last group are kept, for its other variants."""
        subgraph = self._subgraph(item)
        exact = exact_values(subgraph, item.variant)
        key = item.nodes, item.outputs, exact, dtype
        if key not in self._rounded:
            self._rounded = {key: rounded_answers(subgraph, inputs, exact, dtype)}
        return self._rounded[key]

    def _is_cold(self, subgraph: Subgraph) -> bool:
        """Whether in an executable it finds constants cold that are worth it. Of reference kernels nobody
        needs to know it so well.
        """
        if not self.policy.evict_bytes or self.backend.info().kind is BackendKind.REFERENCE:
            return False
        return sum(self.graph.constants[v].nbytes for v in subgraph.constants) >= _COLD_BYTES

    def _subgraph(self, item: KernelItem) -> Subgraph:
        return Subgraph(self.graph, item.nodes, item.outputs)


def open_session(values_path: Path, policy: Policy) -> None:
    """Make the session that the other functions use, of what `Host` has loaded."""
    child_state[_SESSION] = Session(hosted(), values_path, policy)


def ask_supported(items: Sequence[KernelItem]) -> list[Refusal | None]:
    session: Session = child_state[_SESSION]
    return session.supported(items)


def prepare_item(item: MeasureItem, protect: bool) -> CostRecord | None:
    session: Session = child_state[_SESSION]
    return session.prepare(item, protect)


def time_item() -> CostRecord:
    session: Session = child_state[_SESSION]
    return session.timed()


def release_item() -> None:
    session: Session = child_state[_SESSION]
    session.release()
