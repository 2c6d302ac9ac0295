"""Values on several devices, in several precisions: the search finds what trying everything finds."""

from __future__ import annotations

import math
import random

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
    """Costs are whole multiples of what the integer program counts in."""
    rng = random.Random(seed)

    def ms(most: int) -> float:
        return rng.randint(0, most * UNITS_PER_MS) / UNITS_PER_MS

    graph = _graph(rng)
    found: list[Candidate] = []
    stretches = [[n] for n in graph.nodes] + [list(graph.nodes[i : i + 2]) for i in range(4)]
    for nodes in stretches:
        subgraph = Subgraph(graph, [n.id for n in nodes])
        if len(subgraph.outputs) > 1:
            continue
        for backend, formats in _FORMATS.items():
            for f in formats if backend == "left" or rng.random() < 0.8 else ():
                variant = Variant((f,) * len(subgraph.inputs), (f,))
                found.append(Candidate(subgraph, backend, variant, "test"))
    costs = {c.kernel_key: CostRecord("ok", ms(4), 0.0, 9) for c in found}
    kinds = dict.fromkeys(_FORMATS, BackendKind.OPERATOR)
    candidates = CandidateSet(graph, _TARGET, tuple(found), {}, kinds)
    type = graph.type_of("x")
    converters: dict[ConversionKey, tuple[str, float]] = {}
    for here, there, backend in _HOPS:
        for source, destination in ((here, there), (there, here)):
            if rng.random() < 0.9:
                converters[type, source, destination] = backend, ms(2)
    constants = Transitions({b: ms(1) for b in (*_FORMATS, "transfer:gpu")}, {b: ms(1) for b in _FORMATS})
    return formulate(candidates, lambda c: costs[c.kernel_key], converters, constants)


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_trying_everything_finds(seed: int) -> None:
    formulation = _formulation(seed)
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


def test_every_device_takes_part_in_some() -> None:
    chosen: set[str] = set()
    for seed in range(20):
        formulation = _formulation(seed)
        try:
            placement = formulation.placement(OpLevelSearch().solve(formulation.problem))
        except PlacementError:
            continue
        chosen |= {f.device for g in placement.groups for f in g.variant.outputs}
        assert math.isfinite(placement.predicted_ms or math.inf)
    assert chosen == {"cpu", "gpu", "npu"}
