"""What rounding in one place, or quantising one node, does to a model's outputs, by the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from collage_core import clock
from collage_core.costs.check import largest_error
from collage_core.costs.recording import Recording
from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir import Graph, Node, load_stored
from collage_core.ir.randomness import random_values
from collage_core.reference import stored_as
from collage_core.reference.evaluator import NodeEvaluator
from collage_core.rounding import Site
from collage_core.worker import Worker

__all__ = ["filled_in", "quantised_errors", "spread_out", "squared_errors"]


_ALL = 1.0
"""The error of what leaves nothing of an answer."""


def squared_errors(
    worker: Worker, graph_dir: Path, values_dir: Path, sites: Sequence[Site], limit_s: float
) -> dict[Site, float]:
    """By place the square of the outputs' error (max|difference| / max|expected|, the worst output's) where
    the stored graph is run as it was recorded in `values_dir`, but for that place, which is rounded. In the
    order of `sites`, as many as there is time for; at least one.

    Where rounding moves a shape, or an index out of its range, that is 1. What random numbers decide does not
    count. worker: a `reference_worker`.
    """
    found: dict[Site, float] = worker.call(
        _squared_errors, Path(graph_dir), Path(values_dir), tuple(sites), limit_s
    )
    return found


def quantised_errors(
    worker: Worker, graph_dir: Path, values_dir: Path, quantised_dir: Path
) -> dict[str, float]:
    """As `squared_errors`, by name of the nodes that take or yield other values in the quantised graph in
    `quantised_dir`: where the graph of floats is run as it was recorded, but that node takes what it takes
    there. What is quantised as an output of the model counts for the node that yields it.
    """
    found: dict[str, float] = worker.call(
        _quantised_errors, Path(graph_dir), Path(values_dir), Path(quantised_dir)
    )
    return found


def spread_out(sites: Sequence[Site]) -> list[Site]:
    """The same places in an order in which any beginning is spread over all of them: first the ends, then the
    middle, then the middles of the halves.
    """
    last = len(sites) - 1
    order = dict.fromkeys([0, last] if sites else [])
    step = last
    while step > 1:
        step = (step + 1) // 2
        order.update(dict.fromkeys(range(0, last, step)))
    order.update(dict.fromkeys(range(len(sites))))
    return [sites[i] for i in order]


def filled_in(sites: Sequence[Site], measured: Mapping[Site, float]) -> dict[Site, float]:
    """By place, of all of them; where nothing is measured what the worse of its nearest neighbours does.

    sites: in the order of the graph, in which errors change slowly.
    """
    after: dict[Site, float] = {}
    for order in (sites, sites[::-1]):
        near = 0.0
        for site in order:
            near = measured.get(site, near)
            after[site] = max(near, after.get(site, 0.0))
    return after | {s: e for s, e in measured.items() if s in after}


def _squared_errors(
    graph_dir: Path, values_dir: Path, sites: Sequence[Site], limit_s: float
) -> dict[Site, float]:
    """Runs in a worker."""
    end_s = clock.monotonic() + limit_s
    run = _Run(load_stored(graph_dir), Recording(values_dir))
    found: dict[Site, float] = {}
    for site in sites:
        if found and clock.monotonic() > end_s:
            break
        value, dtype = site
        found[site] = run.squared_error(lambda: {value: stored_as(run.recorded(value), dtype)})  # noqa: B023
    return found


def _quantised_errors(graph_dir: Path, values_dir: Path, quantised_dir: Path) -> dict[str, float]:
    """Runs in a worker."""
    run, quantised = _Run(load_stored(graph_dir), Recording(values_dir)), load_stored(quantised_dir)
    there = {n.name: n for n in quantised.nodes}
    found = {}
    for node in run.graph.nodes:
        taken = _taken(run, node, quantised, there.get(node.name))
        ends = {v: dq for v in node.outputs if v and (dq := _dequantising(quantised, v)) is not None}
        if taken or ends:
            found[node.name] = run.squared_error(partial(_yielded, run, node, taken, quantised, ends))
    return found


def _taken(run: _Run, node: Node, quantised: Graph, other: Node | None) -> dict[str, Array]:
    """By name in the graph of floats, what `other`, the same node, takes for it in the quantised one."""
    found: dict[str, Array] = {}
    for v, u in zip(node.inputs, () if other is None else other.inputs, strict=False):
        if u in quantised.dequantised:
            found[v] = quantised.constants[u]
        elif (dq := _dequantising(quantised, u)) is not None:
            found[v] = _counted(run.recorded(v), quantised, dq)
    return found


def _yielded(
    run: _Run, node: Node, taken: Mapping[str, Array], quantised: Graph, ends: Mapping[str, Node]
) -> dict[str, Array]:
    """What the node makes of what it is given."""
    made = run.evaluated(node, taken)
    return {v: _counted(a, quantised, ends[v]) if v in ends else a for v, a in made.items()}


def _dequantising(graph: Graph, value: str) -> Node | None:
    """The DequantizeLinear that yields a value, by constant steps."""
    node = graph.producer(value) if value else None
    if node is None or node.op_type != "DequantizeLinear" or node.domain:
        return None
    return node if len(node.inputs) == 3 and all(graph.is_constant(v) for v in node.inputs[1:]) else None


def _counted(array: Array, graph: Graph, node: Node) -> Array:
    """Floats, as they are once they have been counted in the steps of that DequantizeLinear."""
    scale, zero = (graph.constants[v] for v in node.inputs[1:])
    if scale.ndim == 1 and array.ndim:
        shape = [1] * array.ndim
        shape[int(node.attributes.get("axis", 1))] = scale.size
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    limits = np.iinfo(zero.dtype)
    steps = np.clip(np.rint(array / scale) + zero, limits.min, limits.max)
    floats: Array = ((steps - zero) * scale).astype(array.dtype)
    return floats


class _Run:
    """A run of the whole graph that has been recorded, of which parts are run again."""

    def __init__(self, graph: Graph, recording: Recording) -> None:
        self.graph, self._recording = graph, recording
        self._evaluators: dict[int, NodeEvaluator] = {}
        self._read_last = {v: n.id for n in graph.nodes for v in n.inputs if v}

    @cached_property
    def _expected(self) -> dict[str, Array]:
        random = random_values(self.graph)
        return {v: np.array(self.recorded(v)) for v in self.graph.outputs if v not in random}

    def squared_error(self, change: Callable[[], dict[str, Array]]) -> float:
        """Of the outputs, where some values are as `change` makes them."""
        try:
            return self._error_of(change()) ** 2
        except ModelError:  # a shape or an index is another then
            return _ALL

    def _error_of(self, changed: dict[str, Array]) -> float:
        for name, array in self._follow(changed):
            changed[name] = array
        errors = [
            largest_error(changed[v], expected) for v, expected in self._expected.items() if v in changed
        ]
        return min(max(errors, default=0.0), _ALL)

    def _follow(self, changed: dict[str, Array]) -> Iterator[tuple[str, Array]]:
        """What else is another value then, in order."""
        for node in self.graph.nodes:
            if changed.keys().isdisjoint(node.inputs):
                continue
            yield from self.evaluated(node, changed).items()
            for v in node.inputs:
                if self._read_last.get(v) == node.id and v not in self._expected:
                    changed.pop(v, None)

    def evaluated(self, node: Node, changed: Mapping[str, Array]) -> dict[str, Array]:
        """What a node yields where some values are others."""
        evaluator = self._evaluators.get(node.id) or NodeEvaluator(self.graph, node)
        self._evaluators[node.id] = evaluator
        return evaluator.run({v: changed[v] if v in changed else self.recorded(v) for v in evaluator.reads})

    def recorded(self, value: str) -> Array:
        """What it was, or is where it is constant."""
        graph = self.graph
        return np.asarray(graph.constants[value] if graph.is_constant(value) else self._recording.load(value))
