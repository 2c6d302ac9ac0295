"""Convolutions, their transposes and what follows them, planned and reckoned by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collage_cudnn.description import Description
from cudnn_checks import RunGroup, each

from collage_core.formats import Array
from collage_core.testing import node

_RNG = np.random.default_rng(0)


def _random(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 6, 9, 8), (5, 6, 3, 3), {}),
        ((2, 6, 9, 8), (5, 6, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((1, 6, 9, 9), (6, 6, 3, 3), {"dilations": [2, 3], "pads": [2, 2, 2, 2]}),
        ((1, 6, 9, 9), (4, 3, 3, 3), {"group": 2, "strides": [2, 2]}),
        ((1, 6, 9, 9), (12, 1, 3, 3), {"group": 6, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((1, 6, 8, 8), (4, 6, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ((1, 6, 9, 9), (4, 6, 3, 3), {"auto_pad": "VALID"}),
        ((1, 6, 1, 1), (4, 6, 1, 1), {}),
        ((3, 1, 9, 9), (4, 1, 3, 3), {}),
        ((2, 6, 11), (5, 6, 3), {"pads": [2, 1], "strides": [2]}),
        ((1, 4, 5, 6, 7), (4, 2, 3, 1, 2), {"pads": [1, 0, 1, 1, 0, 0], "group": 2}),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_conv(
    run_group: RunGroup, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], bias: bool
) -> None:
    constants = {"w": _random(*w)}
    if bias:
        constants["b"] = _random(w[0])
    found = run_group([node("Conv", ["x", *constants], "y", **attributes)], {"x": _random(*x)}, constants)
    for asked in each(found):
        assert isinstance(asked, Description)
        assert asked.multiplies


def test_weights_that_are_computed(run_group: RunGroup) -> None:
    inputs = {"x": _random(2, 6, 7, 8), "w": _random(5, 6, 3, 3), "b": _random(5)}
    found = run_group([node("Conv", ["x", "w", "b"], "y", pads=[1, 1, 1, 1])], inputs)
    assert len(found) == 4  # in float32 either layout, in halves channels last


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 6, 5, 4), (6, 5, 3, 3), {}),
        ((2, 6, 5, 4), (6, 5, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 6, 5, 4), (6, 3, 3, 3), {"strides": [3, 2], "group": 2, "pads": [0, 1, 1, 0]}),
        ((1, 6, 5, 5), (6, 4, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((1, 6, 5, 5), (6, 4, 2, 2), {"strides": [2, 2], "output_padding": [1, 0], "dilations": [2, 2]}),
        ((1, 6, 7), (6, 4, 3), {"strides": [2]}),
        ((1, 4, 3, 4, 5), (4, 2, 2, 3, 2), {"strides": [2, 1, 2]}),
    ],
)
def test_deconvolution(
    run_group: RunGroup, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    channels = w[1] * attributes.get("group", 1)
    constants = {"w": _random(*w), "b": _random(channels)}
    nodes = [node("ConvTranspose", ["x", "w", "b"], "c", **attributes), node("Relu", ["c"], "y")]
    run_group(nodes, {"x": _random(*x)}, constants)


def _kinds(asked: object) -> list[str]:
    assert isinstance(asked, Description)
    return [s.kind for s in asked.steps]


def test_residual_comes_before_the_bias(run_group: RunGroup) -> None:
    inputs = {"x": _random(1, 6, 7, 7), "r": _random(1, 5, 7, 7)}
    constants = {"w": _random(5, 6, 3, 3), "b": _random(5)}
    nodes = [
        node("Conv", ["x", "w", "b"], "c", pads=[1, 1, 1, 1]),
        node("Add", ["r", "c"], "s"),
        node("Relu", ["s"], "y"),
    ]
    for asked in each(run_group(nodes, inputs, constants)):
        assert _kinds(asked) == ["conv_fprop", "add", "add", "relu"]
        assert isinstance(asked, Description)
        assert asked.steps[1].inputs[1] in asked.inputs
        assert asked.steps[2].inputs[1] in asked.constants
        assert asked.at_risk


def test_residual_of_its_own_input(run_group: RunGroup) -> None:
    nodes = [node("Conv", ["x", "w"], "c", pads=[1, 1, 1, 1]), node("Add", ["c", "x"], "y")]
    for asked in each(run_group(nodes, {"x": _random(1, 6, 7, 7)}, {"w": _random(6, 6, 3, 3)})):
        assert isinstance(asked, Description)
        assert list(asked.inputs.values()) == [0]


def test_without_a_bias_minus_zero_is_added(run_group: RunGroup) -> None:
    nodes = [node("Conv", ["x", "w"], "c"), node("Relu", ["c"], "y")]
    for asked in each(run_group(nodes, {"x": _random(1, 6, 7, 7)}, {"w": _random(4, 6, 3, 3)})):
        assert _kinds(asked) == ["conv_fprop", "add", "relu"]
        assert isinstance(asked, Description)
        added = asked.constants[asked.steps[1].inputs[1]]
        assert np.all(added == 0)
        assert np.all(np.signbit(added))


def test_what_follows(run_group: RunGroup) -> None:
    constants = {
        "w": _random(4, 6, 3, 3),
        "b": _random(4),
        "gain": _random(4, 1, 1),
        "rows": _random(1, 1, 5, 1),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
    }
    nodes = [
        node("Conv", ["x", "w", "b"], "c"),
        node("Mul", ["c", "gain"], "m"),
        node("Sub", ["rows", "m"], "s"),
        node("HardSigmoid", ["s"], "h"),
        node("Mul", ["s", "h"], "p"),
        node("Clip", ["p", "low", "high"], "y"),
    ]
    run_group(nodes, {"x": _random(2, 6, 7, 7)}, constants)


def test_normalised(run_group: RunGroup) -> None:
    constants = {
        "w": _random(4, 6, 3, 3),
        "scale": _random(4),
        "bias": _random(4),
        "mean": _random(4),
        "var": np.abs(_random(4)),
    }
    nodes = [
        node("Conv", ["x", "w"], "c"),
        node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], "n", epsilon=1e-3),
        node("Relu", ["n"], "y"),
    ]
    run_group(nodes, {"x": _random(2, 6, 7, 7)}, constants)


@pytest.mark.parametrize("activation", ["LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "Elu", "Mish", "Swish"])
def test_activation(run_group: RunGroup, activation: str) -> None:
    opset = 24 if activation == "Swish" else 20
    nodes = [node("Conv", ["x", "w", "b"], "c"), node(activation, ["c"], "y")]
    constants = {"w": _random(4, 6, 3, 3), "b": _random(4)}
    run_group(nodes, {"x": _random(2, 6, 7, 7)}, constants, opset=opset)
