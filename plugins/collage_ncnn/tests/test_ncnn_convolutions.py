"""Convolutions over drawn shapes, against the reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from collage_ncnn.convolution import TILES
from collage_ncnn.variants import strip_rows, tile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage_core.testing import bind, check_group, make_group, node

_SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_CHANNELS = st.sampled_from([4, 8, 12, 16, 20, 24, 32, 48])
_FLOATS = np.float32

ACTIVATIONS: dict[str, tuple[onnx.NodeProto, dict[str, Any]]] = {
    "Clip": (node("Clip", ["y", "low", "high"], "z"), {"low": _FLOATS(-0.5), "high": _FLOATS(0.25)}),
    "Clip by one number": (node("Clip", ["y", "low"], "z"), {"low": np.zeros(1, np.float32)}),
    "Clip to infinity": (
        node("Clip", ["y", "low", "high"], "z"),
        {"low": _FLOATS(-0.123456789), "high": _FLOATS(np.inf)},
    ),
    "Clip above": (node("Clip", ["y", "", "high"], "z"), {"high": _FLOATS(0.25)}),
    "Clip below": (node("Clip", ["y", "low"], "z"), {"low": _FLOATS(0.0)}),
    "HardSwish": (node("HardSwish", ["y"], "z"), {}),
    "LeakyRelu": (node("LeakyRelu", ["y"], "z", alpha=0.3), {}),
    "LeakyRelu by default": (node("LeakyRelu", ["y"], "z"), {}),
    "Mish": (node("Mish", ["y"], "z"), {}),
    "Relu": (node("Relu", ["y"], "z"), {}),
    "Sigmoid": (node("Sigmoid", ["y"], "z"), {}),
}


def _values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _weights(out: int, channels: int, height: int, width: int) -> Any:
    return _values(out, channels, height, width, seed=1) / _FLOATS(np.sqrt(channels * height * width))


@given(
    channels=st.tuples(_CHANNELS, _CHANNELS),
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    bias=st.booleans(),
    by_channel=st.booleans(),
)
@_SETTINGS
def test_convolutions(
    run_convolution: Any,
    channels: tuple[int, int],
    batch: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
    bias: bool,
    by_channel: bool,
) -> None:
    """by_channel: every channel is convolved by itself."""
    within, out = (channels[1], channels[1]) if by_channel else channels
    groups = within if by_channel else 1
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    shape = [max(size[i], reach[i] - pads[i] - pads[i + 2]) for i in range(2)]
    constants = {"w": _weights(out, within // groups, *kernel)}
    if bias:
        constants["b"] = _values(out, seed=2)
    made = node("Conv", ["x", *constants], "y", strides=strides, dilations=dilations, pads=pads, group=groups)
    run_convolution([made], _values(batch, within, *shape), constants)


@pytest.mark.slow
@given(
    channels=st.tuples(_CHANNELS, _CHANNELS),
    batch=st.integers(1, 2),
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    pads=st.sampled_from([(1, 1, 1, 1)] * 3 + [(0, 0, 0, 0), (2, 0, 1, 2), (0, 2, 2, 1), (2, 2, 2, 2)]),
    activation=st.sampled_from([None, *ACTIVATIONS]),
)
@_SETTINGS
def test_windows_of_three(
    run_convolution: Any,
    channels: tuple[int, int],
    batch: int,
    size: tuple[int, int],
    pads: tuple[int, int, int, int],
    activation: str | None,
) -> None:
    """Those for which there are several algorithms."""
    constants: dict[str, Any] = {"w": _weights(channels[1], channels[0], 3, 3), "b": _values(channels[1])}
    nodes = [node("Conv", ["x", "w", "b"], "y", pads=pads)]
    size = max(size[0], 3 - pads[0] - pads[2]), max(size[1], 3 - pads[1] - pads[3])
    if activation is not None:
        after, bounds = ACTIVATIONS[activation]
        nodes.append(after)
        constants |= bounds
    found = run_convolution(nodes, _values(batch, channels[0], *size), constants)
    assert {tile(v) for v in found} == (set(TILES) if max(channels) > 8 else {""})


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("channels", [4, 8, 16])
@pytest.mark.parametrize(("kernel", "by_channel"), [(1, False), (3, True), (4, True)])
def test_activations_without_winograd(
    run_convolution: Any, activation: str, channels: int, kernel: int, by_channel: bool
) -> None:
    after, bounds = ACTIVATIONS[activation]
    groups = channels if by_channel else 1
    constants = {
        "w": _weights(channels, channels // groups, kernel, kernel),
        "b": _values(channels),
        **bounds,
    }
    made = node("Conv", ["x", "w", "b"], "y", group=groups)
    run_convolution([made, after], _values(2, channels, 9, 7), constants)


def test_an_absent_bias(run_convolution: Any) -> None:
    made = node("Conv", ["x", "w", ""], "y")
    run_convolution([made], _values(1, 16, 9, 7), {"w": _weights(16, 16, 3, 3)})


def test_the_bounds_of_early_operator_sets(backend: Any, target: Any) -> None:
    """Clip's were attributes."""
    x, w = _values(1, 16, 9, 7), _weights(16, 16, 3, 3)
    nodes = [node("Conv", ["x", "w"], "y"), node("Clip", ["y"], "z", min=-0.5, max=0.25)]
    check_group(backend, make_group(nodes, {"x": x}, {"w": w}, opset=10), {"x": x}, target)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_automatic_padding(run_convolution: Any, auto_pad: str, strides: tuple[int, int]) -> None:
    made = node("Conv", ["x", "w"], "y", auto_pad=auto_pad, strides=strides)
    run_convolution([made], _values(1, 16, 9, 8), {"w": _weights(16, 16, 4, 3)})


def test_every_tile_is_an_algorithm_of_its_own(backend: Any, target: Any) -> None:
    """The option reaches the library: no two of them give the same numbers, and the largest is the least
    precise.
    """
    x, w = _values(1, 64, 30, 30), _weights(64, 64, 3, 3)
    group = make_group([node("Conv", ["x", "w"], "y", pads=[1, 1, 1, 1])], {"x": x}, {"w": w})
    answers = {}
    for variant in backend.variants(group, target):
        bound = bind(backend.build(group, variant, target), group, variant, {"x": x})
        assert not bound.call()
        answers[tile(variant), strip_rows(variant), variant.outputs[0].is_plain] = bound.outputs[0].copy()
    strips = {(t, rows) for t, rows, _ in answers}
    assert strips == {("2", 0), ("2", 4), ("2", 8), ("4", 0), ("4", 8), ("6", 0), ("6", 12)}
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    taken = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", taken, w.astype(np.float64), optimize=True)
    errors = {t: np.abs(answers[t, 0, True] - expected).max() / np.abs(expected).max() for t in TILES}
    assert errors["2"] < 3e-6
    assert errors["4"] < 5e-6
    assert 5e-6 < errors["6"] < 5e-5
    for one, other in itertools.combinations(TILES, 2):
        assert (answers[one, 0, True] != answers[other, 0, True]).any()
    for size, rows in strips:
        np.testing.assert_array_equal(answers[size, rows, False], answers[size, 0, True])
