"""Before opset 7 operands were aligned by `axis`; what NumPy would align otherwise is refused."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.reference.evaluator import evaluate


def _graph(body: str, shape: str, opset: int = 6) -> Graph:
    head = f'<ir_version: 8, opset_import: ["": {opset}]>'
    return from_model(
        onnx.parser.parse_model(f"{head} g (float[2,3,4,5] x, float[{shape}] s) => (y) {{{body}}}")
    )


def _f(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("operator", ["Add", "Mul", "Pow", "Less"])
@pytest.mark.parametrize(("shape", "axis"), [("3", 1), ("3,4", 1), ("2", 0)])
def test_what_is_aligned_otherwise_is_refused(operator: str, shape: str, axis: int) -> None:
    with pytest.raises(ModelError, match=f"{operator} of opset 6 aligns its operands otherwise") as error:
        _graph(f"y = {operator}<broadcast=1, axis={axis}>(x, s)", shape)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("attributes", "shape"), [("broadcast=1, axis=2", (4, 5)), ("broadcast=1", (5,)), ("broadcast=1", (1,))]
)
def test_what_numpy_aligns_so_too_is_right(attributes: str, shape: tuple[int, ...]) -> None:
    graph = _graph(f"y = Add<{attributes}>(x, s)", ",".join(map(str, shape)))
    x, s = _f(2, 3, 4, 5), _f(*shape)
    assert np.allclose(evaluate(graph, {"x": x, "s": s})["y"], x + s)


def test_slopes_of_channels_are_refused_and_a_single_one_is_right() -> None:
    with pytest.raises(ModelError, match="PRelu of opset 6"):
        _graph("y = PRelu(x, s)", "3")
    x, s = _f(2, 3, 4, 5), np.array([0.25], np.float32)
    found = evaluate(_graph("y = PRelu(x, s)", "1"), {"x": x, "s": s})["y"]
    assert np.allclose(found, np.where(x < 0, 0.25 * x, x))


def test_later_opsets_have_no_axis() -> None:
    assert _graph("y = PRelu(x, s)", "5", opset=7).nodes
    assert _graph("y = Add(x, s)", "5", opset=7).nodes
