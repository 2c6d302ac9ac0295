"""How much more a kernel takes in an executable than alone: measured once per machine and set of backends.

A small network, made here, is placed in several ways that differ in who runs what. Every step of those
placements is timed in place and compared with what the same step took alone. Part of what it takes longer
grows with the step: caches are not as warm, or the machine is slower by now. That is no constant of a group:
it is taken off at one pace for all, and what remains is calibrated.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import combinations
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage_core.backend import Backend, BackendKind
from collage_core.candidates import Candidate
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.rounds import Rounds
from collage_core.errors import BackendError, CollageError
from collage_core.formats import CPU
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise
from collage_core.measuring.bounding import Known
from collage_core.measuring.entrants import placement_entrant
from collage_core.measuring.estimates import Estimates
from collage_core.measuring.in_place import crossings
from collage_core.measuring.ledger import Ledger, default_policy
from collage_core.measuring.libraries import find_candidates
from collage_core.measuring.machine import RUNS_PER_TURN, Machine
from collage_core.measuring.workspace import Workspace
from collage_core.placement import Placement
from collage_core.plugins import Registry
from collage_core.search.formulate import Formulation, formulate
from collage_core.search.op_level import OpLevelSearch
from collage_core.search.transitions import Transitions
from collage_core.sources import source_hash
from collage_core.target import Target

__all__ = ["CALIBRATING", "TRANSITIONS", "calibrate", "calibrated_backends", "calibration_environment"]

TRANSITIONS = "transitions"
"""Kind of a calibration's key."""
CALIBRATING = "calibrating"
"""The phase, of what is measured for it, too."""

_SWITCH = "COLLAGE_CALIBRATION"
_SEPARATOR = "+"

_BLOCKS = 6
_FAVOUR = 0.001
"""What a backend's costs are multiplied by in the placement that is to use it as much as possible."""
_MIXES, _STRETCH = 4, 7
"""So many placements; a stretch is a block's nodes."""
_MOST_NODES = 8
"""Of a group: a library that took all of the network in one would tell nothing of its groups."""
_ROUNDS = 8
_FEWEST_STEPS = 3
_DIGITS = 6  # nanoseconds
_SWEEPS = 100
"""Over the backends, until their shares of a crossing no longer move."""
_MAX_SECONDS = 0.1


_Excess = tuple[str, tuple[str, ...], float]
"""Of a step its backend, those that are left for it, and what it took beyond its time alone."""


class _Step(NamedTuple):
    """A part of a placement, what it takes alone and took in place. left: the backends that values leave for
    it, as the search will count them.
    """

    backend: str
    left: tuple[str, ...]
    alone_ms: float
    took_ms: float


def calibrate(machine: Machine, *, measure: bool = True) -> tuple[Transitions, int]:
    """What is known for just the machine's backends, or, if `measure`, what some seconds of measuring tell,
    which is then kept; and how many costs were measured for it.

    A constant that would be negative is 0. All are 0 where $COLLAGE_CALIBRATION is "off", where only a
    reference takes part, and where calibration fails, which is told.
    """
    eager = [name for name in machine.backends if name not in machine.of_kind(BackendKind.REFERENCE)]
    if _is_off() or not eager:
        return Transitions(), 0
    names = _SEPARATOR.join(sorted(machine.backends))
    environment = calibration_environment(machine.backends, machine.target, machine.registry)
    key = CostKey(TRANSITIONS, "", "", names, environment, Policy(max_seconds=_MAX_SECONDS))
    known, measured = machine.database.get(key), 0
    if known is None:
        if not measure:
            return Transitions(), 0
        try:
            known, measured = _measure(machine, eager)
        except CollageError as error:
            machine.progress.note(
                f"groups and crossings are taken to cost nothing, since calibration failed: {error}"
            )
            return Transitions(), 0
        machine.database.put(key, known)
    details: Mapping[str, Any] = known.details
    return Transitions(details["group_ms"], details["crossing_ms"]), measured


def _is_off() -> bool:
    text = os.environ.get(_SWITCH, "")
    if text not in ("", "on", "off"):
        raise CollageError(f"{_SWITCH} must be on or off, not {text!r}")
    return text == "off"


def calibration_environment(
    backends: Mapping[str, Backend], target: Target, registry: Registry | None = None
) -> dict[str, str]:
    """What a calibration, and what an optimization has found, is valid for: every backend's environment, the
    executables' own code, and all that makes the network of it, and places it.
    registry: see `environment_of`.
    """
    of_all = {name: environment_of(b, target, None, registry) for name, b in backends.items()}
    facts = {f"{name}.{k}": v for name, found in of_all.items() for k, v in found.items()}
    parts = "candidates", "measuring", "pipeline", "runtime", "search"
    ours = {part: source_hash(f"collage_core.{part}") for part in parts}
    return {**facts, **ours, "run": source_hash("collage_run")}


def calibrated_backends(key: CostKey) -> list[str]:
    """Names of the backends that a stored calibration is of."""
    return key.backend.split(_SEPARATOR)


def _network() -> onnx.ModelProto:
    """What convolutional networks and transformers are made of, the same block several times over, each time
    with weights of its own: 10 MB, which do not stay in caches of the second level.
    """
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int) -> str:
        weights.setdefault(name, (rng.standard_normal(shape) * 0.05).astype(np.float32))
        return name

    def op(op_type: str, *inputs: str, **attributes: Any) -> str:
        output = f"v{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [output], f"n{len(nodes)}", **attributes))
        return output

    x = op("AveragePool", "x", kernel_shape=[2, 2], strides=[2, 2])
    for i in range(_BLOCKS):
        y = op("Conv", x, weight(f"conv3.{i}", 128, 128, 3, 3), weight(f"bias.{i}", 128), pads=[1, 1, 1, 1])
        y = op("Mul", y, op("Sigmoid", y))
        y = op("Add", op("Conv", y, weight(f"conv1.{i}", 128, 128, 1, 1)), x)
        x = op("MaxPool", op("Relu", y), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = op("Reshape", x, "rows")
    for i in range(_BLOCKS):
        y = op("Add", op("MatMul", x, weight(f"up.{i}", 128, 1024)), weight(f"up_bias.{i}", 1024))
        y = op("Add", op("MatMul", op("Gelu", y), weight(f"down.{i}", 1024, 128)), x)
        x = op("LayerNormalization", y, weight(f"scale.{i}", 128), weight(f"shift.{i}", 128))
        x = op("Softmax", x)
    rows = np.array([14 * 14, 128], np.int64)
    graph = helper.make_graph(
        nodes,
        "calibration",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 128, 28, 28])],
        [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [14 * 14, 128])],
        [numpy_helper.from_array(a, n) for n, a in {**weights, "rows": rows}.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _measure(machine: Machine, eager: Sequence[str]) -> tuple[CostRecord, int]:
    progress = machine.progress
    progress.phase(CALIBRATING)
    graph = normalise(from_model(_network()))
    policy = replace(default_policy(graph), max_seconds=_MAX_SECONDS)
    with Workspace(graph) as workspace:
        # Never elsewhere: it is this machine's pace that is asked for.
        machine = replace(machine, executor=None)
        candidates, _ = find_candidates(machine, workspace, tells=False)
        progress.phase(CALIBRATING)
        with closing(Ledger(machine, workspace, candidates, policy)) as ledger:
            # Who runs what is what matters here, not who should: guesses choose.
            estimates = Estimates(candidates, machine.peaks())
            known = Known(ledger, OpLevelSearch(), estimates=estimates, phase=CALIBRATING)
            placements = _placements(known, eager)
            measured = ledger.costs.measured
        entrants = [
            placement_entrant(workspace, str(i), p, machine.registry, parts=True)
            for i, p in enumerate(placements)
        ]
        progress.phase(CALIBRATING, _ROUNDS)
        ran = machine.run_in_turns(
            entrants, Rounds(_ROUNDS), is_checked=False, on_round=lambda _: progress.step()
        )
    steps: list[_Step] = []
    for i, placement in enumerate(placements):
        if parts_ms := ran[str(i)].outcome.parts_ms:
            steps += _steps(graph, placement, parts_ms)
    if not steps:
        reasons = {r.outcome.reason for r in ran.values() if r.outcome.reason}
        raise BackendError("; ".join(sorted(reasons)))
    # NumPy's pace is its own, and so is another device's.
    paced = {name for name in eager if CPU in machine.backends[name].info().devices}
    pace = _pace([s for s in steps if s.backend in paced])
    fitted = _fit(_excess(steps, pace), list(machine.backends))
    return replace(fitted, details={**fitted.details, "pace": round(pace, _DIGITS)}), measured + 1


def _placements(known: Known, backends: Sequence[str]) -> list[Placement]:
    """Some in which each stretch of nodes has a backend of its own, as much of it as that can run; all of
    them have about as many, in every part of the network. All measured.
    """
    order = {n.id: i for i, n in enumerate(known.candidates.graph.nodes)}
    stretches = range(0, len(order), _STRETCH)
    rng = random.Random(0)

    def favourites() -> list[str]:
        """Every backend as often as every other, in any order."""
        found: list[str] = []
        while len(found) < len(stretches):
            found += rng.sample(backends, len(backends))
        return found

    def factor(favourite: Sequence[str], candidate: Candidate) -> float:
        first = min(order[n] for n in candidate.subgraph.node_set)
        return _FAVOUR if candidate.backend == favourite[first // _STRETCH] else 1.0

    found = (_measured(known, partial(factor, favourites())) for _ in range(_MIXES))
    return list({p.digest: p for p in found}.values())


def _measured(known: Known, factor: Callable[[Candidate], float]) -> Placement:
    """The best placement if each candidate cost its factor times what it does, all of its costs measured."""
    assert known.estimates is not None
    small = [c for c in known.candidates.candidates if len(c.subgraph.node_set) <= _MOST_NODES]
    candidates = replace(known.candidates, candidates=tuple(small))
    while True:
        known.estimates.guess(known.costs, known.ledger.unknown_converters)
        try:
            formulation = formulate(candidates, known.costs.record_of, known.costs.converters())
            placement = _solved(formulation, factor)
        finally:
            known.costs.forget_bounds()
        if not known.measure(placement, races=False):  # what turned out not to run is out the next time
            return known.priced(placement)


def _solved(formulation: Formulation, factor: Callable[[Candidate], float]) -> Placement:
    problem = formulation.problem
    scaled = tuple(
        replace(choice, cost_ms=choice.cost_ms * factor(candidate))
        for choice, candidate in zip(problem.choices, formulation.choices, strict=True)
    )
    solution = OpLevelSearch().solve(replace(problem, choices=scaled))
    return formulation.placement(solution)


def _steps(graph: Graph, placement: Placement, parts_ms: Sequence[float]) -> list[_Step]:
    """Of each part, in the order of execution."""
    took_ms = dict(zip((*placement.groups, *placement.conversions), parts_ms, strict=True))
    return [
        _Step(part.backend, left, part.cost_ms, took_ms[part])
        for part, left in crossings(graph, placement)
        if part.cost_ms is not None
    ]


def _pace(steps: Sequence[_Step]) -> float:
    """How many times as long as alone steps take in place, apart from constants; 1 where too few tell.

    It is the median slope between two steps of one backend, weighted by how far apart they are. (Sievers,
    "Weighted rank statistics for simple linear regression", JASA 73, 1978.) What others' values cross to is
    left out.
    """
    by_backend: dict[str, list[_Step]] = {}
    for step in steps:
        if not step.left:
            by_backend.setdefault(step.backend, []).append(step)
    slopes, weights = [], []
    for alike in by_backend.values():
        pairs = combinations(alike, 2) if len(alike) >= _FEWEST_STEPS else ()
        for a, b in pairs:
            if a.alone_ms != b.alone_ms:
                slopes.append((a.took_ms - b.took_ms) / (a.alone_ms - b.alone_ms))
                weights.append(abs(a.alone_ms - b.alone_ms))
    if not slopes:
        return 1.0
    order = np.argsort(slopes)
    until = np.cumsum(np.array(weights)[order])
    return float(slopes[order[np.searchsorted(until, until[-1] / 2.0)]])


def _excess(steps: Sequence[_Step], pace: float) -> list[_Excess]:
    """Beyond a pace. One below 1 says that costs alone were taken in a bad moment: it is taken as 1."""
    return [(s.backend, s.left, s.took_ms - max(1.0, pace) * s.alone_ms) for s in steps]


def _fit(excess: Sequence[_Excess], backends: Sequence[str]) -> CostRecord:
    """Constants per group: the median of parts that nothing crosses to, or of all where these are few.
    Constants per crossing: of what remains of others. What was not seen has the median of those that were.
    """
    group_ms = {}
    for name in backends:
        alone = [ms for b, left, ms in excess if b == name and not left]
        every = [ms for b, _, ms in excess if b == name]
        if every:
            group_ms[name] = max(0.0, median(alone if len(alone) >= _FEWEST_STEPS else every))
    pairs: dict[tuple[str, str], list[float]] = {}
    for backend, left, ms in excess:
        for source in left:
            pairs.setdefault((source, backend), []).append((ms - group_ms[backend]) / len(left))
    seen = {pair: (median(found_ms), len(found_ms)) for pair, found_ms in pairs.items()}
    details: dict[str, object] = {
        "group_ms": _with_median(group_ms, backends),
        "crossing_ms": _with_median(_crossing_ms(seen), backends),
        "steps": len(excess),
        "pairs": [[*pair, *found] for pair, found in sorted(seen.items())],
    }
    return CostRecord("ok", runs=_ROUNDS * RUNS_PER_TURN, details=details)


def _with_median(seen_ms: Mapping[str, float], backends: Sequence[str]) -> dict[str, float]:
    typical_ms = median(seen_ms.values()) if seen_ms else 0.0
    return {name: seen_ms.get(name, typical_ms) for name in backends}


def _crossing_ms(seen: Mapping[tuple[str, str], tuple[float, int]]) -> dict[str, float]:
    """What one costs on the way from one backend to another is taken to be the sum of a share of each: of
    stopping its threads, and of waking them. Who leaves a backend pays for both of its shares, for what is
    left has been entered.

    Least squares, no share negative, over what pairs cost there and back, by so many sweeps; of a lone pair
    both have the same share. seen: by the two, from and to, the median of what remains, of how many.
    """
    pairs: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for (a, b), found in seen.items():
        pairs.setdefault((min(a, b), max(a, b)), []).append(found)
    shares_ms = dict.fromkeys((name for pair in pairs for name in pair), 0.0)
    for _ in range(_SWEEPS):
        before_ms = dict(shares_ms)
        for name in shares_ms:
            weighted_ms, count = 0.0, 0
            for (a, b), directions in pairs.items():
                if name in (a, b):
                    other_ms = before_ms[b if a == name else a]
                    seen_count = sum(n for _, n in directions)
                    weighted_ms += seen_count * (fmean(ms for ms, _ in directions) - other_ms)
                    count += seen_count
            # Half of the way, for the others move at the same time.
            shares_ms[name] = 0.5 * (before_ms[name] + max(0.0, weighted_ms / count))
    return {name: round(2.0 * ms, _DIGITS) for name, ms in shares_ms.items()}
