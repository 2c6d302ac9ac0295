"""Placement problems whose costs are recorded, and bounds of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from collage_benchmarks.recorded import RecordedCosts, recorded_ledger
from onnx import TensorProto, helper

from collage_core import Target, Variant, plain_variant
from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.errors import Refusal
from collage_core.formats import Format, channels_last
from collage_core.ir import Graph, Subgraph, TensorType, from_model
from collage_core.measuring.bounding import Known, search_placement
from collage_core.measuring.costing import Converter, Costs
from collage_core.measuring.estimates import Hope, as_likely
from collage_core.measuring.in_place import KernelKey, conversion_key, kernel_key
from collage_core.placement import Placement
from collage_core.search import OpLevelSearch
from collage_core.search.formulate import ConversionKey, needed_conversions
from collage_core.search.searcher import SearchResult
from collage_core.search.transitions import Transitions

__all__ = ["FAILED", "KINDS", "TARGET", "Bounds", "Problem", "contents_of", "ms_of", "record_of"]

TARGET = Target("cpu", 1)
"""What the problems are to be placed on."""

_UNARY = ("Relu", "Neg", "Abs", "Exp", "Sin", "Cos", "Tanh", "Floor", "Sigmoid", "Erf")
_BINARY = ("Add", "Mul", "Sub", "Max")
KINDS = {
    "red": BackendKind.OPERATOR,
    "green": BackendKind.OPERATOR,
    "blue": BackendKind.GRAPH,
    "ref": BackendKind.REFERENCE,
}
"""The backends that may run something, by name."""
FAILED = CostRecord("failed", reason="it raised")
"""Of a kernel that does not run."""


class _Toy(Backend):
    """Says what it is and what it converts; nobody builds anything of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, KINDS[self.name], "1", None)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        raise NotImplementedError

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        return self.name != "green"


@dataclass(slots=True)
class Bounds:
    """In place of `Estimates`, of all kernels and conversions. guesses_ms: none guesses nothing."""

    kernels_ms: Mapping[KernelKey, float]
    converters_ms: Mapping[Converter, float]
    guesses_ms: Mapping[KernelKey, float] = field(default_factory=dict)

    def bound(self, costs: Costs, converters: Iterable[Converter], *, hopeful: bool = False) -> None:
        costs.kernel_bounds_ms = {k: ms for k, ms in self.kernels_ms.items() if k not in costs.kernels}
        costs.converter_bounds_ms = {c: self.converters_ms[c] for c in converters}

    def guess(self, costs: Costs, converters: Iterable[Converter], hoped_ms: Hope = as_likely) -> None:
        self.bound(costs, converters)
        guesses_ms = {k: hoped_ms(ms) for k, ms in self.guesses_ms.items()}
        costs.kernel_bounds_ms = {k: ms for k, ms in guesses_ms.items() if k not in costs.kernels}

    def first_of(self, keys: Iterable[KernelKey], costs: Costs) -> list[KernelKey]:
        """Never more than two at a time."""
        return [*dict.fromkeys(keys)][:2]

    def enough_ms(self, key: KernelKey) -> float:
        return math.inf


@dataclass
class Problem:
    """A graph, what may run its parts, and the costs that nobody knows yet. share: by what the bound of a
    cost is the cost.
    """

    candidates: CandidateSet
    truth: Costs
    share: Callable[[], float]
    recorded: RecordedCosts = field(init=False)

    @classmethod
    def generated(
        cls, seed: int, share: Callable[[random.Random], float] = lambda r: 1.0 - r.random()
    ) -> Problem:
        rng = random.Random(seed)
        graph = _graph(rng)
        candidates = CandidateSet(graph, TARGET, tuple(_candidates(graph, rng)), {}, KINDS)
        constants = Transitions({b: rng.random() for b in KINDS}, {b: rng.random() for b in KINDS})
        transitions = rng.choice((Transitions(), constants))
        truth = _truth(candidates, rng)
        truth.transitions = transitions
        return cls(candidates, truth, lambda: share(rng))

    def full(self) -> SearchResult:
        """With everything measured."""
        return search_placement(self.candidates, self.truth, OpLevelSearch())

    @contextmanager
    def known(self, gap: float = 0.0, time_is_over: Callable[[], bool] = lambda: False) -> Iterator[Known]:
        self.recorded = RecordedCosts(self.candidates.graph, self.truth)
        backends = {name: _Toy(name) for name in KINDS}
        with recorded_ledger(self.candidates, backends, self.recorded, time_is_over) as ledger:
            ledger.costs.transitions = self.truth.transitions
            yield Known(ledger, OpLevelSearch(), gap, self.bounds())

    def bounds(self) -> Any:
        return Bounds(
            {key: self._bound_ms(record) for key, record in self.truth.kernels.items()},
            {
                (conversion, backend): self._bound_ms(record)
                for conversion, records in self.truth.conversion_records.items()
                for backend, record in records.items()
            },
        )

    def _bound_ms(self, record: CostRecord) -> float:
        return self.share() * (record.median_ms if record.median_ms is not None else 3.0)


def _graph(rng: random.Random) -> Graph:
    """Some nodes, each of which reads the model's input or nodes before it."""
    values, nodes, read = ["x"], [], set()
    for i in range(rng.randint(3, 8)):
        count = rng.choice((1, 1, 2))
        inputs = [rng.choice(values[-3:]) for _ in range(count)]
        op = rng.choice(_UNARY if count == 1 else _BINARY)
        nodes.append(helper.make_node(op, inputs, [f"v{i}"], f"n{i}"))
        values.append(f"v{i}")
        read |= set(inputs)
    outputs = [v for v in values[1:] if v not in read or rng.random() < 0.1]
    shape = [1, 4, 2, 2]
    return from_model(
        helper.make_model(
            helper.make_graph(
                nodes,
                "generated",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                [helper.make_tensor_value_info(v, TensorProto.FLOAT, shape) for v in outputs],
            ),
            opset_imports=[helper.make_opsetid("", 20)],
            ir_version=10,
        )
    )


def _candidates(graph: Graph, rng: random.Random) -> Iterator[Candidate]:
    """Single nodes and groups of some that follow each other, row by row and channels last; the reference
    has every node.
    """
    groups = [[n.id] for n in graph.nodes]
    for n in graph.nodes:
        group = [n.id]
        while len(group) < 4 and rng.random() < 0.7:
            followers = [c.id for v in graph.node(group[-1]).outputs for c in graph.consumers(v)]
            if not followers:
                break
            group.append(rng.choice(followers))
            groups.append(sorted(group, key=graph.positions.__getitem__))
    for group in groups:
        subgraph = Subgraph(graph, group)
        plain = plain_variant(subgraph)
        last = Variant(
            tuple(
                channels_last(f.dtype, graph.shape_of(v))
                for v, f in zip(subgraph.inputs, plain.inputs, strict=True)
            ),
            tuple(
                channels_last(f.dtype, graph.shape_of(v))
                for v, f in zip(subgraph.outputs, plain.outputs, strict=True)
            ),
        )
        for backend in ("red", "green", "blue"):
            if rng.random() < 0.7:
                yield Candidate(subgraph, backend, plain, "pattern")
            if rng.random() < 0.4:
                yield Candidate(subgraph, backend, last, "pattern")
        if len(group) == 1:
            yield Candidate(subgraph, "ref", plain, "pattern")


def _truth(candidates: CandidateSet, rng: random.Random) -> Costs:
    """A kernel takes what its nodes do, more or less, now and then much more; some fail."""
    pace = {name: rng.uniform(0.5, 2.0) for name in KINDS} | {"ref": 9.0}
    kernels: dict[KernelKey, CostRecord] = {}
    for c in candidates.candidates:
        ms = (
            len(c.subgraph.nodes)
            * pace[c.backend]
            * rng.choice((0.5, 0.8, 1.0, 1.2, 5.0))
            * rng.uniform(0.8, 1.0)
        )
        fails = c.backend != "ref" and rng.random() < 0.1
        kernels.setdefault(c.kernel_key, FAILED if fails else record_of(ms))
    conversions: dict[ConversionKey, dict[str, CostRecord]] = {}
    for conversion in needed_conversions(candidates.graph, candidates.candidates):
        conversions[conversion] = {
            b: FAILED if rng.random() < 0.1 else record_of(rng.uniform(0.0, 1.0))
            for b in KINDS
            if b != "green"
        }
    return Costs(kernels, conversions)


def record_of(ms: float) -> CostRecord:
    """Of a kernel that runs."""
    return CostRecord("ok", ms, 0.0, 20)


def ms_of(result: SearchResult) -> float:
    """What the placement that was found is predicted to take."""
    assert result.placement.predicted_ms is not None
    return result.placement.predicted_ms


def contents_of(graph: Graph, placement: Placement) -> tuple[set[KernelKey], set[Converter]]:
    """The costs that a placement is made of."""
    kernels = {kernel_key(graph, g) for g in placement.groups}
    return kernels, {(conversion_key(graph, c), c.backend) for c in placement.conversions}
