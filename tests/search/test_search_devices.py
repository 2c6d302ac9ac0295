"""Values on several devices, in several precisions: the search finds what trying everything finds."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from exhaustive_search import ExhaustiveSearch
from integer_program import UNITS_PER_MS, solve
from onnx import TensorProto, helper

from collage_core import Target, Variant
from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.errors import PlacementError
from collage_core.formats import Format
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.measuring.in_place import KernelKey
from collage_core.search import OpLevelSearch
from collage_core.search.formulate import ConversionKey, Formulation, formulate
from collage_core.search.transitions import Transitions

_TARGET = Target("cpu", 1, ("float16",), ("gpu", "npu"))
_HERE = Format("float32", (0, 1))
_FORMATS = {
    "left": (_HERE, Format("float32", (1, 0)), Format("float16", (0, 1))),
    "gpu": (_HERE.on("gpu"), Format("float16", (0, 1), "gpu")),
    "npu": (Format("float16", (0, 1), "npu"),),
}
_HOPS = [
    *((_HERE, Format("float32", (1, 0)), "left"),),
    *((_HERE, _HERE.on("gpu"), "transfer:gpu"),),
    *((_HERE.on("gpu"), Format("float16", (0, 1), "gpu"), "gpu"),),
    *((_HERE, Format("float16", (0, 1)), "left"),),
    *((Format("float16", (0, 1)), Format("float16", (0, 1), "npu"), "transfer:npu"),),
    *((Format("float16", (0, 1)), Format("float16", (0, 1), "gpu"), "transfer:gpu"),),
]
"""Each goes there and back; from one device to the other values go by way of the host, rounded there."""


def _graph(rng: random.Random) -> Graph:
    """Five operators of one or two operands, each of any value before it."""
    values, nodes = ["x"], []
    for i in range(5):
        operands = [values[-1], *rng.sample(values, rng.random() < 0.4)]
        nodes.append(helper.make_node("Add" if len(operands) > 1 else "Relu", operands, [f"v{i}"], f"n{i}"))
        values.append(f"v{i}")
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [2, 3]) for v in ("x", values[-1])]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return from_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def _formulation(seed: int) -> Formulation:
    """Costs are whole multiples of what the integer program counts in. Each operator is fast on some of the
    devices; what moves a value costs about what that gains, and so does a crossing.
    """
    rng = random.Random(seed)

    def ms(least: float, most: float) -> float:
        return rng.randint(round(least * UNITS_PER_MS), round(most * UNITS_PER_MS)) / UNITS_PER_MS

    graph = _graph(rng)
    fast = {(n.id, backend): rng.random() < 0.5 for n in graph.nodes for backend in _FORMATS}
    found: list[Candidate] = []
    costs: dict[KernelKey, CostRecord] = {}
    stretches = [[n] for n in graph.nodes] + [list(graph.nodes[i : i + 2]) for i in range(4)]
    for nodes in stretches:
        subgraph = Subgraph(graph, [n.id for n in nodes])
        if len(subgraph.outputs) > 1:
            continue
        for backend, formats in _FORMATS.items():
            is_fast = all(fast[n.id, backend] for n in nodes)
            for f in formats if rng.random() < 0.7 else ():
                variant = Variant((f,) * len(subgraph.inputs), (f,))
                found.append(Candidate(subgraph, backend, variant, "test"))
                cost_ms = ms(0.1, 0.5) if is_fast else ms(0.6, 1.5) * len(nodes)
                costs[found[-1].kernel_key] = CostRecord("ok", cost_ms, 0.0, 9)
    kinds = dict.fromkeys(_FORMATS, BackendKind.OPERATOR)
    candidates = CandidateSet(graph, _TARGET, tuple(found), {}, kinds)
    type = graph.type_of("x")
    converters: dict[ConversionKey, tuple[str, float]] = {}
    for here, there, backend in _HOPS:
        for source, destination in ((here, there), (there, here)):
            if rng.random() < 0.8:
                converters[type, source, destination] = backend, ms(0.0, 0.2)
    constants = Transitions(
        {b: ms(0.0, 0.1) for b in (*_FORMATS, "transfer:gpu")}, {b: ms(0.0, 0.3) for b in _FORMATS}
    )
    return formulate(candidates, lambda c: costs[c.kernel_key], converters, constants)


_SEEDS = range(200)


@pytest.mark.parametrize("seed", _SEEDS)
def test_it_finds_what_trying_everything_finds(seed: int) -> None:
    try:
        formulation = _formulation(seed)
    except PlacementError:  # a node that nobody runs
        return
    problem = formulation.problem
    try:
        best = ExhaustiveSearch().solve(problem)
    except PlacementError:
        with pytest.raises(PlacementError):
            OpLevelSearch().solve(problem)
        return
    found = OpLevelSearch().solve(problem)
    assert found.optimal
    assert found.total_ms == pytest.approx(best.total_ms)
    assert solve(problem)[1] == pytest.approx(best.total_ms, abs=1e-5)
    placement = formulation.placement(found)
    assert placement.predicted_ms == pytest.approx(best.total_ms)
    for c in placement.conversions:
        devices = {c.source.device, c.destination.device}
        assert len(devices) == 1 or "cpu" in devices, "from device to device by way of the host"
        assert len(devices) == 1 or c.source.dtype == c.destination.dtype


def test_these_problems_ask_for_what_several_devices_bring() -> None:
    seen: Counter[str] = Counter()
    for seed in _SEEDS:
        try:
            formulation = _formulation(seed)
            placement = formulation.placement(OpLevelSearch().solve(formulation.problem))
        except PlacementError:
            seen["nobody can"] += 1
            continue
        devices = {f.device for g in placement.groups for f in g.variant.outputs}
        seen.update(f"some on {device}" for device in devices)
        seen["several devices"] += len(devices) > 1
        seen["all three"] += len(devices) == 3
        seen["pays a crossing"] += placement.terms_ms["crossings"] > 0.0
        into = Counter((c.value, c.destination) for c in placement.conversions)
        onward = [c for c in placement.conversions if (c.value, c.source) in into]
        seen["several hops"] += bool(onward)
        seen["rounded"] += any(f.dtype != "float32" for g in placement.groups for f in g.variant.outputs)
    assert all(seen[what] >= count for what, count in _ASKED.items()), seen
    assert seen["nobody can"] < 30, seen


_ASKED = {
    **dict.fromkeys(("some on cpu", "some on gpu", "some on npu", "several devices"), 30),
    **dict.fromkeys(("pays a crossing", "several hops", "rounded"), 30),
    "all three": 4,
    "nobody can": 10,
}
"""Of so many problems at least."""
