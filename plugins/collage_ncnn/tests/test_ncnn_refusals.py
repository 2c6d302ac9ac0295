"""Everything that is declined says why and where."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Subgraph, TensorType
from collage_core.testing import make_graph, make_group, node

_X, _W = (1, 16, 8, 8), (16, 16, 3, 3)


def _zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


def _declined(backend: Any, target: Any, subgraph: Subgraph) -> Refusal:
    refusal = backend.variants(subgraph, target)
    assert isinstance(refusal, Refusal)
    return refusal


def _conv(**attributes: Any) -> onnx.NodeProto:
    return node("Conv", ["x", "w"], "y", name="n", **attributes)


@pytest.mark.parametrize(
    ("made", "x", "constants", "reason"),
    [
        (node("MaxPool", ["x"], "y", name="n", kernel_shape=[2, 2]), _zeros(*_X), {}, "no convolution"),
        (_conv(), _zeros(*_X, dtype="float16"), {"w": _zeros(*_W, dtype="float16")}, "only float32"),
        (_conv(), _zeros(0, 16, 8, 8), {"w": _zeros(*_W)}, "no elements"),
        (_conv(), _zeros(1, 16, 8), {"w": _zeros(16, 16, 3)}, "two spatial dimensions"),
        (_conv(), _zeros(1, 16, 8, 8, 8), {"w": _zeros(16, 16, 3, 3, 3)}, "two spatial dimensions"),
        (_conv(group=4), _zeros(*_X), {"w": _zeros(16, 4, 3, 3)}, "groups of channels"),
        (_conv(group=16), _zeros(*_X), {"w": _zeros(32, 1, 3, 3)}, "groups of channels"),
    ],
)
def test_declined(
    backend: Any, target: Any, made: onnx.NodeProto, x: Any, constants: dict[str, Any], reason: str
) -> None:
    refusal = _declined(backend, target, make_group([made], {"x": x}, constants))
    assert reason in refusal.reason
    assert refusal.node == "n"


def test_negative_padding(backend: Any, target: Any) -> None:
    made, declared = _conv(pads=[-1, 0, 0, 0]), {"y": TensorType("float32", (1, 16, 5, 6))}
    group = make_group([made], {"x": _zeros(*_X)}, {"w": _zeros(*_W)}, ["y"], types=declared)
    assert "padding is negative" in _declined(backend, target, group).reason


def test_weights_that_are_computed(backend: Any, target: Any) -> None:
    group = make_group([_conv()], {"x": _zeros(*_X), "w": _zeros(*_W)})
    assert "not constant" in _declined(backend, target, group).reason


def test_a_constant_image(backend: Any, target: Any) -> None:
    group = make_group([_conv()], {}, {"x": _zeros(*_X), "w": _zeros(*_W)})
    assert "is constant" in _declined(backend, target, group).reason


def test_unknown_dimensions(backend: Any, target: Any) -> None:
    graph = make_graph([_conv()], {"x": _zeros(*_X)}, {"w": _zeros(*_W)})
    unknown = dataclasses.replace(graph.values["x"], type=TensorType("float32", ("images", *_X[1:])))
    open_graph = graph.replace(values={**graph.values, "x": unknown})
    refusal = _declined(backend, target, Subgraph(open_graph, open_graph.all_nodes))
    assert "'images' is not known" in refusal.reason


@pytest.mark.parametrize(
    ("after", "constants", "reason"),
    [
        ([node("Tanh", ["y"], "z")], {}, "only an activation"),
        ([node("Relu", ["y"], "r"), node("Relu", ["r"], "z")], {}, "only an activation"),
        ([node("Clip", ["y", "low", "high"], "z")], {"low": 1.0, "high": 0.0}, "not below its upper"),
        ([node("Clip", ["y", "low"], "z")], {"low": np.nan}, "not below its upper"),
    ],
)
def test_what_is_not_fused(
    backend: Any, target: Any, after: list[onnx.NodeProto], constants: dict[str, float], reason: str
) -> None:
    bounds = {name: np.float32(value) for name, value in constants.items()}
    group = make_group([_conv(), *after], {"x": _zeros(*_X)}, {"w": _zeros(*_W), **bounds})
    assert reason in _declined(backend, target, group).reason


def test_an_activation_of_another_domain(backend: Any, target: Any) -> None:
    nodes = [_conv(), node("Relu", ["y"], "z", domain="elsewhere")]
    declared = {"z": TensorType("float32", (1, 16, 6, 6))}
    group = make_group(nodes, {"x": _zeros(*_X)}, {"w": _zeros(*_W)}, ["z"], types=declared)
    assert "only an activation" in _declined(backend, target, group).reason


@pytest.mark.parametrize("shape", [(3, 16, 3, 3), (16, 6, 3, 3), (6, 1, 3, 3)])
def test_channels_that_the_library_would_compute_one_at_a_time(
    backend: Any, target: Any, shape: tuple[int, ...]
) -> None:
    """It writes beyond the last, and ends the process at some addresses."""
    within, groups = (shape[0], shape[0]) if shape[1] == 1 else (shape[1], 1)
    group = make_group([_conv(group=groups)], {"x": _zeros(1, within, 8, 8)}, {"w": _zeros(*shape)})
    assert "multiple of 4" in _declined(backend, target, group).reason


@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        ({"y": (1, 16, 5, 6)}, {}),
        ({"y": (1, 32, 6, 6)}, {}),
        ({"w": (16, 8, 3, 3)}, {}),
        ({"b": (1,)}, {}),
        ({}, {"kernel_shape": (2, 2)}),
        ({}, {"strides": (2, 1)}),
    ],
)
def test_what_does_not_fit(
    backend: Any, target: Any, shapes: dict[str, tuple[int, ...]], attributes: dict[str, Any]
) -> None:
    """The library would read beyond the weights, or write elsewhere than to the output."""
    made = node("Conv", ["x", "w", "b"], "y", name="n")
    graph = make_graph([made], {"x": _zeros(*_X)}, {"w": _zeros(*_W), "b": _zeros(16)})
    values = {
        n: dataclasses.replace(graph.values[n], type=TensorType("float32", s)) for n, s in shapes.items()
    }
    wrong = graph.replace(
        nodes=[dataclasses.replace(graph.nodes[0], attributes=attributes)],
        values={**graph.values, **values},
        constants={n: _zeros(*shapes.get(n, a.shape)) for n, a in graph.constants.items()},
    )
    assert "do not fit" in _declined(backend, target, Subgraph(wrong, wrong.all_nodes)).reason


def test_a_result_that_is_read_before_the_activation(backend: Any, target: Any) -> None:
    nodes = [_conv(), node("Relu", ["y"], "z")]
    group = make_group(nodes, {"x": _zeros(*_X)}, {"w": _zeros(*_W)}, ["y", "z"])
    assert "somebody else" in _declined(backend, target, group).reason


def test_bounds_that_are_computed(backend: Any, target: Any) -> None:
    nodes = [_conv(), node("Clip", ["y", "low"], "z")]
    values = {"x": _zeros(*_X), "low": _zeros()}
    group = make_group(nodes, values, {"w": _zeros(*_W)})
    assert "not constant" in _declined(backend, target, group).reason


def test_building_what_was_never_offered(backend: Any, target: Any) -> None:
    group = make_group([_conv()], {"x": _zeros(*_X), "w": _zeros(*_W)})
    with pytest.raises(BackendError, match="not constant"):
        backend.build(group, Variant((), ()), target)


def test_the_library_is_not_installed(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    monkeypatch.setattr("collage_ncnn.backend.installed_version", lambda name: None)
    assert backend.info().reason == "ncnn is not installed"
