"""Convolution, transposed convolution and pooling over drawn shapes and attributes, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.testing import make_graph, node

_SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _values(shape: list[int], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    small = st.integers(1, 3)
    kernel = [draw(small) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    strides = [draw(small) for _ in range(rank)]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [e + draw(st.integers(0, 5)) for e in extent]
    groups, inner, outer = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3])), draw(small)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "dilations": dilations,
        "strides": strides,
        "group": groups,
    }
    padding = draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if padding == "pads" or transposed:
        # Of a transposed convolution the whole output may be cut away: at most half the window is.
        most = [min(e - 1, 2) // (2 if transposed else 1) for e in extent]
        attributes["pads"] = [draw(st.integers(0, m)) for m in most * 2]
    else:
        attributes["auto_pad"] = padding
    if transposed and draw(st.booleans()):
        attributes["output_padding"] = [draw(st.integers(0, max(s - 1, 0))) for s in strides]
    weights = [groups * inner, outer, *kernel] if transposed else [groups * outer, inner, *kernel]
    return {
        "x": [draw(st.integers(1, 2)), groups * inner, *size],
        "w": weights,
        "b": [groups * outer] if draw(st.booleans()) else None,
        "attributes": attributes,
        "constant": draw(st.booleans()),
    }


def _run_convolution(run_group: Any, op: str, case: dict[str, Any]) -> None:
    x, w = _values(case["x"], 0), _values(case["w"], 1)
    parameters = {"w": w} if case["b"] is None else {"w": w, "b": _values(case["b"], 2)}
    made = node(op, ["x", *parameters], ["y"], **case["attributes"])
    if case["constant"]:
        run_group([made], {"x": x}, parameters)
    else:
        run_group([made], {"x": x, **parameters})


@given(convolutions(transposed=False))
@_SETTINGS
def test_conv(run_group: Any, case: dict[str, Any]) -> None:
    _run_convolution(run_group, "Conv", case)


@given(convolutions(transposed=True))
@_SETTINGS
def test_conv_transpose(run_group: Any, case: dict[str, Any]) -> None:
    _run_convolution(run_group, "ConvTranspose", case)


def test_conv_transpose_to_a_given_shape(run_group: Any) -> None:
    made = node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=[10, 10])
    run_group([made], {"x": _values([1, 4, 5, 5], 0)}, {"w": _values([4, 3, 4, 4], 1)})


@pytest.mark.parametrize("channels", [16, 32, 48])
def test_depthwise_and_wide_convolutions(run_group: Any, channels: int) -> None:
    """Sizes for which the fast implementations are chosen."""
    x = _values([1, channels, 14, 14], 0)
    depthwise = node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], group=channels)
    run_group([depthwise], {"x": x}, {"w": _values([channels, 1, 3, 3], 1)})
    full = node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2])
    run_group([full], {"x": x}, {"w": _values([64, channels, 3, 3], 1), "b": _values([64], 2)})


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "dilations": dilations,
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
    }
    padding = draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if padding == "pads":
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    else:
        attributes["auto_pad"] = padding
    if op == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    x = [draw(st.integers(1, 2)), draw(st.integers(1, 17)), *(e + draw(st.integers(0, 5)) for e in extent)]
    return {"op": op, "x": x, "attributes": attributes}


_DILATED_BY_NOTHING = {
    "op": "AveragePool",
    "x": [1, 1, 1, 2, 1],
    "attributes": {"kernel_shape": [1, 2, 1], "dilations": [1, 1, 2], "auto_pad": "SAME_UPPER"},
}


@given(pools())
@example(_DILATED_BY_NOTHING)
@_SETTINGS
def test_pool(run_group: Any, backend: Any, target: Any, case: dict[str, Any]) -> None:
    """What is offered is right; what is declined says why."""
    x = _values(case["x"], 0)
    made = node(case["op"], ["x"], ["y"], **case["attributes"])
    graph = make_graph([made], {"x": x})
    offered = backend.variants(Subgraph(graph, graph.all_nodes), target)
    if isinstance(offered, Refusal):
        assert "padding" in offered.reason
    else:
        run_group([made], {"x": x})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("spatial", [(7,), (7, 5), (3, 4, 5)], ids=str)
def test_global_pool(run_group: Any, op: str, spatial: tuple[int, ...]) -> None:
    x = _values([2, 19, *spatial], 0)
    reduce = np.max if op == "GlobalMaxPool" else np.mean
    expected = reduce(x, axis=tuple(range(2, x.ndim)), keepdims=True)
    run_group([node(op, ["x"], ["y"])], {"x": x}, expected=expected)
