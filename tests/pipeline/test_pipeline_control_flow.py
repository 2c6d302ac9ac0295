"""Models with If, Loop and Scan, placed with everything that is installed; and ONNX's own cases of them, on
every graph library.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from control_flow_models import CONTROL_FLOW, control_flow_model, inputs_of
from onnx import numpy_helper

from collage_core import Bundle, Target, build, load, normalise, optimize, save
from collage_core.backend import BackendKind
from collage_core.errors import ModelError, Refusal
from collage_core.ir import Subgraph, bodies_of, from_model
from collage_core.ir.static import require_static
from collage_core.plugins import default_registry
from collage_core.reference import evaluate
from collage_core.testing import check_group

_TARGET = Target("cpu", 1)

_DECLINED = {
    "onnxruntime": {},
    "openvino": {
        "test_linear_attention_fp16_expanded": "is float16",
        "test_loop11": "knows no static shape of output",
        "test_range_bfloat16_type_positive_delta_expanded": "knows no static shape of output",
        "test_range_float16_type_positive_delta_expanded": "knows no static shape of output",
        "test_range_float_type_positive_delta_expanded": "knows no static shape of output",
        "test_range_int32_type_negative_delta_expanded": "knows no static shape of output",
    },
}
"""Backend -> case -> a part of what it says."""

_OPEN = {
    "test_affine_grid_2d_align_corners_expanded",
    "test_affine_grid_2d_expanded",
    "test_affine_grid_3d_align_corners_expanded",
    "test_affine_grid_3d_expanded",
}
"""Cases whose shapes depend on the numbers that the model is given."""


@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("between images", ()),
        ("loop in an if in a loop", ["onnxruntime", "openvino"]),
        pytest.param("between images", None, marks=pytest.mark.slow),
    ],
)
def test_a_model_is_placed_saved_and_run(name: str, backends: Sequence[str] | None, tmp_path: Path) -> None:
    """By the reference alone, by libraries that take whole graphs, and by all that is installed."""
    model = control_flow_model(CONTROL_FLOW[name])
    result = optimize(model, backends=backends, target=_TARGET, costs=tmp_path / "costs", rounds=0)
    node = next(n for n in result.graph.nodes if bodies_of(n))
    group = next(g for g in result.placement.groups if node.id in g.nodes)
    assert (group.backend == "reference") == (not backends and backends is not None)
    save(Bundle(result.graph, result.placement), tmp_path / "model.collage")
    for executable in (build(result.graph, result.placement), load(tmp_path / "model.collage")):
        for inputs in inputs_of(model):
            found = executable(inputs)
            for v, expected in evaluate(from_model(model), inputs).items():
                np.testing.assert_allclose(found[v], expected, rtol=1e-4, atol=1e-5)


def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the cases overflow on purpose while they are made
        from onnx.backend.test.loader import load_model_tests

        cases = load_model_tests(kind="node")
    nodes = [(c, c.model.graph.node) for c in cases if c.model is not None]
    return [c for c, found in nodes if any(a.HasField("g") for n in found for a in n.attribute)]


def _array(data: Any) -> Any:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else np.asarray(data)


@pytest.mark.slow
def test_onnx_cases_run_on_the_graph_libraries() -> None:
    """Those of tensors; a library that declines one says why."""
    libraries = [b for b in default_registry().available() if b.info().kind is BackendKind.GRAPH]
    declined: dict[str, dict[str, str]] = {b.name: {} for b in libraries}
    open_shapes, run = set(), 0
    for case in _cases():
        try:
            graph = normalise(from_model(case.model))
            require_static(graph)
        except ModelError as error:
            if "cannot be inferred" in str(error):
                open_shapes.add(case.name)
            continue
        inputs = dict(zip(graph.inputs, map(_array, case.data_sets[0][0]), strict=True))
        for node in graph.nodes:
            if not bodies_of(node) or node.domain:
                continue
            part = Subgraph(graph, [node.id])
            for library in libraries:
                (refusal,) = library.supported([part], _TARGET)
                if isinstance(refusal, Refusal):
                    declined[library.name][case.name] = refusal.reason
                else:
                    check_group(library, part, inputs, _TARGET, repeatable=False)
                    run += 1
    assert open_shapes == _OPEN
    for name, cases in declined.items():
        assert cases.keys() == _DECLINED[name].keys()
        for case_name, why in _DECLINED[name].items():
            assert why in cases[case_name]
    assert run > 35
