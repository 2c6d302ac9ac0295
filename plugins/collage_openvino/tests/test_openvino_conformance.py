"""ONNX's own node tests as groups of the backend, in all variants: what it takes it can build, and it answers
what ONNX says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_benchmarks.node_suite import cases
from collage_openvino.backend import OpenvinoBackend
from onnx import numpy_helper

from collage_core.costs.check import compare
from collage_core.errors import BackendError, ModelError, Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph, from_model
from collage_core.target import Target
from collage_core.testing import bind, make_group, node

_EXCLUSIONS = Path(__file__).parents[3] / "tests" / "onnx_backend" / "exclusions.json"

TARGET = Target("cpu", 2)


def _array(data: Any) -> Array:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else np.asarray(data)


def _cases() -> Iterator[tuple[str, Subgraph, list[Array], list[Array]]]:
    """Those of operators; as functions of others they are in the node suite of core's tests. What core
    declines is named there.
    """
    refused = {name for names in json.loads(_EXCLUSIONS.read_text())["refused"].values() for name in names}
    for name, case in cases().items():
        of_operator = name.partition("_expanded")[0]
        if of_operator != name and of_operator in cases():
            continue
        try:
            graph = from_model(case.model)
        except ModelError:
            assert name in refused
            continue
        group = Subgraph(graph, graph.all_nodes)
        variants = OpenvinoBackend().variants(group, TARGET)
        if graph.nodes and not isinstance(variants, Refusal):
            inputs, outputs = case.data_sets[0]
            yield name, group, list(map(_array, inputs)), list(map(_array, outputs))


def _fault(group: Subgraph, inputs: list[Array], outputs: list[Array]) -> str | None:
    backend, graph = OpenvinoBackend(), group.graph
    variants = backend.variants(group, TARGET)
    assert not isinstance(variants, Refusal)
    values = dict(zip(graph.inputs, inputs, strict=True))
    for variant in variants:
        try:
            bound = bind(backend.build(group, variant, TARGET), group, variant, values)
            bound.call()
        except BackendError as error:
            return f"fails: {error}"
        expected = dict(zip(graph.outputs, outputs, strict=True))
        for name, array in zip(group.outputs, bound.outputs, strict=True):
            _, wrong = compare(name, array, expected[name])
            if wrong is not None:
                return f"{variant}: {wrong}"
    return None


@pytest.mark.slow
def test_node_cases() -> None:
    cases = list(_cases())
    refusals = OpenvinoBackend().supported([group for _, group, *_ in cases], TARGET)
    taken = [case for case, refusal in zip(cases, refusals, strict=True) if refusal is None]
    assert len(taken) > 610
    faults = {name: _fault(group, inputs, outputs) for name, group, inputs, outputs in taken}
    assert not {name: fault for name, fault in faults.items() if fault}


def test_a_refused_group_does_not_spoil_the_others() -> None:
    relu = make_group([node("Relu", ["x"], "o")], {"x": np.ones((2, 2), np.float32)})
    det = make_group([node("Det", ["x"], "o")], {"x": np.ones((2, 2), np.float32)})
    older = make_group([node("Relu", ["x"], "o")], {"x": np.ones(2, np.float32)}, opset=17)
    asked = [det if k in (3, 4, 39) else older if k == 7 else relu for k in range(45)]
    answers = OpenvinoBackend().supported(asked, TARGET)
    assert [k for k, answer in enumerate(answers) if answer is not None] == [3, 4, 39]
