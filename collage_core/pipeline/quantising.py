"""A quantised model of one of floats, made by a library's own tool, and how far it is off."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import onnx
from collage_run.files import written

from collage_core.costs.check import largest_error
from collage_core.costs.contributions import quantised_errors
from collage_core.costs.recording import record, reference_values, reference_worker
from collage_core.costs.roofline import work_of
from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph, Node, NodeSet, Operator, OpKind, Subgraph, from_model, save_stored
from collage_core.ir.bodies import free_name
from collage_core.ir.passes import normalise
from collage_core.ir.randomness import random_values
from collage_core.ir.selecting import selected
from collage_core.ir.static import require_static
from collage_core.ir.stored import MODEL_FILE
from collage_core.measuring.progress import Progress, Silent
from collage_core.measuring.temporary import TemporaryFolder
from collage_core.peer import PeerInfo
from collage_core.pipeline.calibration import samples_of
from collage_core.pipeline.reading import read_model
from collage_core.plugins import Registry, default_registry
from collage_core.worker import RemoteError, Worker

__all__ = ["Quantising", "quantise"]

_LIMIT_S = 3600.0
_FLOATS, _QUANTISED = "floats", "quantised"
"""Folders of graphs."""
_WHOLE = frozenset(
    {"ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QuantizeLinear"}
)
"""Of operators on whole numbers, those that stand for quantised ones; others are stated by these."""


@dataclass(frozen=True, slots=True)
class Quantising:
    """A quantised model that was written.

    by: whose tool made it. samples: so many its ranges come from. weighed: by so many others harm was told.
    held_out: on so many others it was run. error: max|difference from the floats' answer| / max|that|, the
    worst output's on the worst of these. spared: nodes that stayed floats for the error that was allowed.
    quantised, products: how many products have weights of whole numbers, of how many. bytes: of the model
    before and after.
    """

    by: PeerInfo
    samples: int
    weighed: int
    held_out: int
    error: float
    spared: tuple[str, ...]
    quantised: int
    products: int
    bytes_before: int
    bytes: int


def quantise(
    model: str | Path | onnx.ModelProto,
    calibration: Mapping[str, Array],
    output: str | Path,
    *,
    max_error: float | None = None,
    excluded: Collection[str] = (),
    quantizer: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    skip_passes: Collection[str] = (),
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> Quantising:
    """Normalise a model and write a quantised one, statically: what values range over is seen on samples.

    calibration: samples of each input along a further axis in front, two at least. The last quarter, one at
    least, is held out, to tell the error. output: the file to write, replaced as a whole.

    max_error: what the error may be there. Nodes that do most harm stay floats until it holds. Harm is
    weighed on one sample more that no range comes from, where there are four. excluded: selectors of nodes
    that stay floats anyway (`collage_core.ir.selecting`). quantizer: whose tool; that of the first that is
    available where None.

    InputError for a calibration that does not fit. CollageError for a node that is not there, for a model
    that is quantised, where no tool is, and where the error cannot be held. RemoteError with what the tool
    says.
    """
    registry, progress = registry or default_registry(), progress or Silent()
    if max_error is not None and not 0.0 < max_error < 1.0:
        raise CollageError(f"max_error must be above 0 and below 1, not {max_error:g}")
    tool = registry.quantizer(quantizer)
    graph = read_model(model, shapes, skip_passes, registry, progress).graph
    require_static(graph)
    if whole := [n for n in graph.nodes if n.op_type in _WHOLE] or [*graph.dequantised.values()]:
        raise CollageError(f"it is quantised already: {whole[0]}")
    kept = frozenset(n.name for selector in excluded for n in selected(graph, selector))
    samples = samples_of(graph, calibration)
    drawn = (samples.chosen_by, *samples.held_out)
    count = max(1, len(drawn) // 4)
    seen, held_out = list(drawn[:-count]), drawn[-count:]
    # What a range cuts off shows on other samples than it comes from.
    weighed = seen.pop() if max_error is not None and len(seen) > 2 else seen[0]
    folder = TemporaryFolder()
    try:
        trials = _Trials(tool.name, graph, seen, held_out, folder.path, registry, progress)
        trial = trials.of(kept)
        if max_error is not None and trial.error > max_error:
            trial = _within(trials, trial, weighed, max_error)
        if not any(n.op_type == "QuantizeLinear" for n in trial.graph.nodes) and not trial.graph.dequantised:
            raise CollageError(f"{tool.name} quantises nothing of it")
        _write(trial.model, Path(output))
        before = trials.bytes_before
    finally:
        folder.remove()
    quantised, products = _products(trial)
    spared = tuple(sorted(trial.excluded - kept))
    sizes = before, os.path.getsize(output)
    told = len(seen), len(drawn) - len(seen) - count, count
    return Quantising(tool.info(), *told, trial.error, spared, quantised, products, *sizes)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A quantised model with the nodes that stayed floats, its normalised graph, and how far it is off."""

    excluded: frozenset[str]
    model: onnx.ModelProto
    graph: Graph
    error: float


class _Trials:
    """Quantised models of one of floats, in a folder."""

    def __init__(
        self,
        tool: str,
        graph: Graph,
        seen: Sequence[Mapping[str, Array]],
        held_out: Sequence[Mapping[str, Array]],
        folder: Path,
        registry: Registry,
        progress: Progress,
    ) -> None:
        self._tool, self.graph, self._seen, self._held_out = tool, graph, seen, held_out
        self._folder, self._registry, self._progress = folder, registry, progress
        self._expected: list[dict[str, Array]] = []
        save_stored(graph, folder / _FLOATS)
        self.bytes_before = sum(f.stat().st_size for f in (folder / _FLOATS).iterdir())

    def of(self, excluded: frozenset[str]) -> _Trial:
        graph, folder = _with_own_constants(self.graph, excluded), self._folder / _FLOATS
        if graph is not self.graph:
            folder = self._folder / "given"
            save_stored(graph, folder)
        given, made = folder / MODEL_FILE, self._folder / "made.onnx"
        self._progress.phase(f"quantising with {self._tool}", len(self._seen))
        with Worker({}, plugins=self._registry.modules()) as worker:
            nodes = tuple(sorted(excluded))
            worker.call(_quantise, self._tool, given, self._seen, nodes, made, timeout_s=_LIMIT_S)
        written = onnx.load(made)
        quantised = normalise(from_model(written, definitions=self._registry.definitions))
        save_stored(quantised, self._folder / _QUANTISED)
        self._progress.phase("comparing it on samples that were held out", len(self._held_out))
        return _Trial(excluded, written, quantised, self._error())

    def _error(self) -> float:
        """Of what was stored last."""
        random = random_values(self.graph)
        worst = 0.0
        with reference_worker() as worker:
            for k, sample in enumerate(self._held_out):
                if k == len(self._expected):
                    self._expected.append(reference_values(self._folder / _FLOATS, sample, worker=worker))
                expected = self._expected[k]
                try:
                    found = reference_values(self._folder / _QUANTISED, sample, worker=worker)
                except RemoteError as error:
                    raise CollageError(f"the quantised model cannot be run: {error}") from error
                errors = [largest_error(found[v], right) for v, right in expected.items() if v not in random]
                worst = max(worst, *errors, 0.0)
                self._progress.step()
        return worst

    def harm(self, sample: Mapping[str, Array]) -> list[_Harm]:
        """What quantising does in each node of the last one, alone; on that sample."""
        self._progress.phase("weighing what quantising does")
        with reference_worker() as worker:
            values = self._folder / "values"
            record(self._folder / _FLOATS, sample, values, worker)
            found = quantised_errors(worker, self._folder / _FLOATS, values, self._folder / _QUANTISED)
        work = {n.name: work_of(Subgraph(self.graph, NodeSet([n.id]))).flops for n in self.graph.nodes}
        return [_Harm(name, squared_error, work[name]) for name, squared_error in found.items()]


class _Harm(NamedTuple):
    """squared_error: of the outputs, where this node alone is quantised. flops: what it computes."""

    node: str
    squared_error: float
    flops: int


def _within(trials: _Trials, whole: _Trial, weighed: Mapping[str, Array], max_error: float) -> _Trial:
    """With some nodes left out that do most harm, by which the held-out samples hold the limit. `whole`, the
    last, does not hold it. weighed: a sample by which harm is told. CollageError where no product is left.

    Three orders are tried, each by bisection: by harm, by harm for what is computed, and what is no product
    before all others. The answer is what leaves out less to compute.
    """
    harm = trials.harm(weighed)
    products = {n.name for n in trials.graph.nodes if _is_product(trials.graph, n)}
    orders: tuple[Callable[[_Harm], tuple[float, ...]], ...] = (
        lambda h: (h.squared_error,),
        lambda h: (h.squared_error / max(h.flops, 1),),
        lambda h: (h.node not in products, h.squared_error),
    )
    flops = {h.node: h.flops for h in harm}
    best: _Trial | None = None  # each holds a whole model: no more of them than needed
    fewest: tuple[int, int] | None = None
    least = math.inf
    for key in orders:
        for trial in _bisected(trials, whole, sorted(harm, key=key, reverse=True), max_error):
            if not _products(trial)[0]:
                continue
            least = min(least, trial.error)
            left_out = sum(flops.get(n, 0) for n in trial.excluded), len(trial.excluded)
            if trial.error <= max_error and (fewest is None or left_out < fewest):
                best, fewest = trial, left_out
    if best is not None:
        return best
    told = f"; the least was {least:.1e}" if least < math.inf else ""
    raise CollageError(f"no product was found that can be quantised within an error of {max_error:g}{told}")


def _bisected(trials: _Trials, whole: _Trial, harm: Sequence[_Harm], max_error: float) -> Iterator[_Trial]:
    """With more and more of these left out, the first ones, or less: as few as hold the limit."""
    fewest, most = 0, len(harm)
    while most - fewest > 1:
        count = (fewest + most) // 2
        trial = trials.of(whole.excluded | {h.node for h in harm[:count]})
        yield trial
        fewest, most = (fewest, count) if trial.error <= max_error else (count, most)


def _quantise(
    name: str, model: Path, samples: Sequence[Mapping[str, Array]], excluded: Collection[str], output: Path
) -> None:
    """Runs in a worker."""
    default_registry().quantizer(name).quantise(model, samples, excluded, output)


def _write(model: onnx.ModelProto, output: Path) -> None:
    try:
        data = model.SerializeToString()
    except ValueError as error:
        raise CollageError(f"{output}: over 2 GB, which one file cannot hold") from error
    with written(output) as file:
        file.write_bytes(data)


def _products(trial: _Trial) -> tuple[int, int]:
    """With weights of whole numbers, and all."""
    graph = trial.graph
    found = [n for n in graph.nodes if _is_product(graph, n)]
    return sum(any(v in graph.dequantised for v in n.inputs[:2]) for n in found), len(found)


def _is_product(graph: Graph, node: Node) -> bool:
    return Operator(graph, node).kind is OpKind.OUT_ELEMWISE_FUSABLE


def _with_own_constants(graph: Graph, names: frozenset[str]) -> Graph:
    """The graph, where nodes of these names share no constants with others: a tool quantises it for all."""
    values, constants, nodes = dict(graph.values), dict(graph.constants), []
    for node in graph.nodes:
        shared = {
            v: free_name(f"{v}.of.{node.name}", values)
            for v in node.inputs
            if v in graph.constants and {n.name for n in graph.consumers(v)} - names and node.name in names
        }
        for v, own in shared.items():
            values[own], constants[own] = replace(graph.values[v], name=own), graph.constants[v]
        nodes.append(replace(node, inputs=tuple(shared.get(v, v) for v in node.inputs)) if shared else node)
    if len(constants) == len(graph.constants):
        return graph
    return graph.replace(nodes=nodes, values=values, constants=constants)
