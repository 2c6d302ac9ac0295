"""Ten thousand nodes over two devices, in two precisions: found within ten seconds, and proven."""

from __future__ import annotations

import random
import time

import pytest
from onnx import TensorProto, helper

from collage_core import Target, Variant
from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.formats import Format
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.search import OpLevelSearch
from collage_core.search.formulate import ConversionKey, Formulation, formulate
from collage_core.search.transitions import Transitions
from collage_core.target import processor

_NODES = 10_000
_LIMIT_S = 10.0 if processor().multiplies_int8 else 25.0
"""Of a processor's time; older ones, which tests run on as well, are half as fast."""
_BLOCK = 4
_HERE, _TURNED = Format("float32", (0, 1)), Format("float32", (1, 0))
_THERE, _HALF = _HERE.on("gpu"), Format("float16", (0, 1), "gpu")
_FORMATS = {"left": (_HERE, _TURNED), "right": (_HERE,), "gpu": (_THERE, _HALF)}
_HOPS = ((_HERE, _TURNED, "left"), (_HERE, _THERE, "transfer:gpu"), (_THERE, _HALF, "gpu"))


def _graph() -> Graph:
    """Residual blocks: three operators, and one that adds what went in."""
    values, nodes = ["x"], []
    for i in range(_NODES):
        is_sum = i % _BLOCK == _BLOCK - 1
        operands = [values[-1], values[-_BLOCK]] if is_sum else [values[-1]]
        nodes.append(helper.make_node("Add" if is_sum else "Relu", operands, [f"v{i}"], f"n{i}"))
        values.append(f"v{i}")
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [2, 3]) for v in ("x", values[-1])]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return from_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def _formulation() -> Formulation:
    rng, graph = random.Random(3), _graph()
    found: list[Candidate] = []
    for i, node in enumerate(graph.nodes):
        stretches = [[node]] if i % _BLOCK == _BLOCK - 1 else [[node], list(graph.nodes[i : i + 2])]
        for nodes in stretches:
            subgraph = Subgraph(graph, [n.id for n in nodes])
            for backend, formats in _FORMATS.items():
                variants = [Variant((f,) * len(subgraph.inputs), (f,)) for f in formats]
                found += [Candidate(subgraph, backend, variant, "test") for variant in variants]
    # Structures are few, and would all cost the same: what decides is where a node stands.
    at = {id(c): CostRecord("ok", rng.uniform(0.2, 1.0), 0.0, 9) for c in found}
    target = Target("cpu", 1, ("float16",), ("gpu",))
    kinds = dict.fromkeys(_FORMATS, BackendKind.OPERATOR)
    candidates = CandidateSet(graph, target, tuple(found), {}, kinds)
    type = graph.type_of("x")
    converters: dict[ConversionKey, tuple[str, float]] = {
        (type, *ends): (backend, rng.uniform(0.02, 0.2))
        for here, there, backend in _HOPS
        for ends in ((here, there), (there, here))
    }
    constants = Transitions(dict.fromkeys(_FORMATS, 0.05), dict.fromkeys(_FORMATS, 0.05))
    return formulate(candidates, lambda c: at[id(c)], converters, constants)


@pytest.mark.ci
@pytest.mark.alone
def test_ten_thousand_nodes_over_two_devices_are_placed_within_ten_seconds() -> None:
    formulation = _formulation()
    assert len(formulation.choices) == 87_500
    begun_s = time.process_time()
    found = OpLevelSearch().solve(formulation.problem)
    took_s = time.process_time() - begun_s
    assert found.optimal
    assert took_s < _LIMIT_S
    placement = formulation.placement(found)
    assert {f.device for g in placement.groups for f in g.variant.outputs} == {"cpu", "gpu"}
    assert {f.dtype for g in placement.groups for f in g.variant.outputs} == {"float32", "float16"}
