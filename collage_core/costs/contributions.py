"""What rounding in one place does to a model's outputs, by the reference."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from collage_core.costs.check import largest_error
from collage_core.costs.recording import Recording
from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir import Graph, load_stored
from collage_core.ir.randomness import random_values
from collage_core.reference import stored_as
from collage_core.reference.evaluator import NodeEvaluator
from collage_core.rounding import Site
from collage_core.worker import Worker

__all__ = ["filled_in", "spread_out", "squared_errors"]


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
    end_s = time.monotonic() + limit_s
    run = _Run(load_stored(graph_dir), Recording(values_dir))
    found: dict[Site, float] = {}
    for site in sites:
        if found and time.monotonic() > end_s:
            break
        try:
            found[site] = run.error_of(*site) ** 2
        except ModelError:  # a shape or an index is another then
            found[site] = _ALL
    return found


class _Run:
    """A run of the whole graph that has been recorded, of which parts are run again."""

    def __init__(self, graph: Graph, recording: Recording) -> None:
        self._graph, self._recording = graph, recording
        self._evaluators: dict[int, NodeEvaluator] = {}
        self._read_last = {v: n.id for n in graph.nodes for v in n.inputs if v}

    @cached_property
    def _expected(self) -> dict[str, Array]:
        random = random_values(self._graph)
        return {v: np.array(self._recorded(v)) for v in self._graph.outputs if v not in random}

    def error_of(self, value: str, dtype: str) -> float:
        """The outputs' error where that value is rounded to that type."""
        changed = {value: stored_as(np.asarray(self._recorded(value)), dtype)}
        for name, array in self._follow(changed):
            changed[name] = array
        errors = [
            largest_error(changed[v], expected) for v, expected in self._expected.items() if v in changed
        ]
        return min(max(errors, default=0.0), _ALL)

    def _follow(self, changed: dict[str, Array]) -> Iterator[tuple[str, Array]]:
        """What else is another value then, in order."""
        for node in self._graph.nodes:
            if changed.keys().isdisjoint(node.inputs):
                continue
            evaluator = self._evaluators.get(node.id) or NodeEvaluator(self._graph, node)
            self._evaluators[node.id] = evaluator
            yield from evaluator.run(
                {v: changed[v] if v in changed else self._recorded(v) for v in evaluator.reads}
            ).items()
            for v in node.inputs:
                if self._read_last.get(v) == node.id and v not in self._expected:
                    changed.pop(v, None)

    def _recorded(self, value: str) -> Array:
        graph = self._graph
        return graph.constants[value] if graph.is_constant(value) else self._recording.load(value)
