"""ONNX's own node tests as groups of the backend, in all variants: it takes what it can build, and what it
takes is right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from collage_benchmarks.node_suite import cases
from collage_onnxruntime.backend import OnnxRuntimeBackend
from onnx import numpy_helper

from collage_core.errors import BackendError, ModelError, Refusal
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.ir.passes import normalise
from collage_core.ir.static import require_static
from collage_core.target import Target
from collage_core.testing import bind

_RANDOM = {
    *("test_training_dropout", "test_training_dropout_default"),
    *("test_training_dropout_default_mask", "test_training_dropout_mask"),
}
"""Their numbers are those of another generator."""
_EXCLUSIONS = Path(__file__).parents[3] / "tests" / "onnx_backend" / "exclusions.json"


def _readable() -> Sequence[tuple[str, Graph, list[Any], list[Any]]]:
    """Those of operators; as functions of others they are in the node suite of core's tests. What core
    declines is named there.
    """
    refused = {name for names in json.loads(_EXCLUSIONS.read_text())["refused"].values() for name in names}
    found = []
    for name, case in cases().items():
        of_operator = name.partition("_expanded")[0]
        if of_operator != name and of_operator in cases():
            continue
        try:
            graph = from_model(case.model)
        except ModelError:
            assert name in refused
            continue
        if any(graph.type_of(v).symbolic_dims for v in graph.values):
            if name not in refused:
                require_static(normalise(graph))  # as large as its values say, and core knows the largest
        elif graph.nodes:
            inputs, outputs = case.data_sets[0]
            found.append((name, graph, list(inputs), list(outputs)))
    return found


def _array(data: Any) -> npt.NDArray[Any]:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else np.asarray(data)


def _fault(backend: OnnxRuntimeBackend, graph: Graph, inputs: list[Any], outputs: list[Any]) -> str | None:
    """What is wrong, in any variant; "" where the backend declines what it could not build either."""
    target = Target("cpu", 1)
    part = Subgraph(graph, graph.all_nodes)
    (refusal,) = backend.supported([part], target)
    variants = backend.variants(part, target)
    if isinstance(variants, Refusal):
        return "" if refusal == variants else "another refusal"
    given = {v: _array(a) for v, a in zip(graph.inputs, inputs, strict=True)}
    expected = {v: _array(a) for v, a in zip(graph.outputs, outputs, strict=True)}
    for variant in variants:
        try:
            kernel = backend.build(part, variant, target)
        except BackendError as error:
            return "" if refusal is not None else f"not built: {error}"
        if refusal is not None:
            return f"declined, and yet built: {refusal}"
        bound = bind(kernel, part, variant, given)
        try:
            bound.call()
        except Exception as error:  # whatever the library raises
            return f"fails: {error}"
        for name, found in zip(part.outputs, bound.outputs, strict=True):
            wanted = expected[name]
            scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-6)
            share = 1e-2 if str(wanted.dtype) in ("float16", "bfloat16") else 1e-4
            if not np.allclose(found, wanted, rtol=share, atol=share * scale, equal_nan=True):
                return "wrong"
    return None


@pytest.mark.slow
def test_node_cases(backend: OnnxRuntimeBackend) -> None:
    faults = {name: _fault(backend, graph, inputs, outputs) for name, graph, inputs, outputs in _readable()}
    assert sum(f is None for f in faults.values()) > 1000
    found = {name: fault for name, fault in faults.items() if fault}
    assert found.keys() == _RANDOM, found
