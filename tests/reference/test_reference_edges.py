"""The reference against ONNX Runtime where windows, places and regions leave the input, or barely meet it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decisions import excused
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from two_opinions import disagreement, one_node

Tensor = npt.NDArray[Any]
Node = tuple[str, int, list[Tensor | None], dict[str, Any], tuple[int, ...]]
"""Operator, opset, inputs, attributes, and which inputs are constants."""

FEW, MANY = 60, 600


def numbers(draw: st.DrawFn, *shape: int) -> Tensor:
    seed = draw(st.integers(0, 2**16))
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def each(draw: st.DrawFn, low: int, high: int, count: int) -> list[int]:
    return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))


def windows(draw: st.DrawFn, rank: int, *, dilated: bool) -> dict[str, Any]:
    """Any attributes, however little of the input the windows see."""
    attributes: dict[str, Any] = {"kernel_shape": each(draw, 1, 3, rank)}
    if draw(st.booleans()):
        attributes["strides"] = each(draw, 1, 4, rank)
    if dilated and draw(st.booleans()):
        attributes["dilations"] = each(draw, 1, 2, rank)
    kind = draw(st.sampled_from(["none", "pads", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if kind == "pads":
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in attributes["kernel_shape"] * 2]
    elif kind != "none":
        attributes["auto_pad"] = kind
    return attributes


@st.composite
def pools(draw: st.DrawFn) -> Node:
    op = draw(st.sampled_from(["AveragePool", "LpPool", "MaxPool"]))
    opset = draw(st.sampled_from([11, 12, 18, 19, 22]))
    size = each(draw, 1, 6, draw(st.integers(1, 3)))
    new = opset >= {"AveragePool": 19, "LpPool": 18, "MaxPool": 10}[op]
    attributes = windows(draw, len(size), dilated=new)
    if draw(st.booleans()) and (new or op == "AveragePool"):
        attributes["ceil_mode"] = 1
    if op == "LpPool":
        attributes["p"] = draw(st.integers(1, 3))
    if op == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    ones = [1] * len(size)
    pads = attributes.get("pads", [0] * 2 * len(size))
    for i, n in enumerate(size):
        span = (attributes["kernel_shape"][i] - 1) * attributes.get("dilations", ones)[i] + 1
        assume(n + pads[i] + pads[len(size) + i] >= span)
        # A window of padding alone has no average.
        assume(op != "AveragePool" or attributes.get("dilations", ones)[i] <= n)
    return op, opset, [numbers(draw, 1, 1, *size)], attributes, ()


@st.composite
def transposed(draw: st.DrawFn) -> Node:
    rank = draw(st.integers(1, 3))
    size = each(draw, 1, 4, rank)
    attributes = windows(draw, rank, dilated=True)
    kernel = attributes.pop("kernel_shape")
    ones = [1] * rank
    strides, dilations = (attributes.get(k, ones) for k in ("strides", "dilations"))
    extra = [0] * rank
    if draw(st.booleans()):
        extra = attributes["output_padding"] = [
            draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)
        ]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(size, strides, kernel, dilations, extra, strict=True)
    ]
    pads = attributes.get("pads", [0] * 2 * rank)
    assume(all(f > pads[i] + pads[rank + i] for i, f in enumerate(full)))
    if "pads" not in attributes and draw(st.booleans()):
        attributes["output_shape"] = [draw(st.integers(max(1, f - 3), f)) for f in full]
    group, each_group = attributes.setdefault("group", draw(st.integers(1, 2))), draw(st.integers(1, 2))
    inputs: list[Tensor | None] = [numbers(draw, 1, 2, *size), numbers(draw, 2, each_group, *kernel)]
    if draw(st.booleans()):
        inputs.append(numbers(draw, group * each_group))
    return "ConvTranspose", draw(st.sampled_from([11, 22])), inputs, attributes, ()


@st.composite
def resized(draw: st.DrawFn) -> Node:
    opset = draw(st.sampled_from([11, 13, 18, 19]))
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    places = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    place = draw(st.sampled_from(places + (["half_pixel_symmetric"] if opset == 19 else [])))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": place}
    shape = each(draw, 1, 5, 2)
    if mode == "cubic":
        attributes["exclude_outside"] = draw(st.integers(0, 1))
    if opset >= 18 and mode != "nearest":
        attributes["antialias"] = draw(st.integers(0, 1))
    region: Tensor | None = None if opset >= 13 else np.zeros(0, np.float32)
    if place == "tf_crop_and_resize":
        starts, ends = ([0.0, 0.25, -0.25], [1.0, 0.75, 1.25])
        corners = [draw(st.sampled_from(s)) for s in (starts, starts, ends, ends)]
        region, attributes["extrapolation_value"] = np.asarray(corners, np.float32), 7.0
    if draw(st.booleans()):
        scales = [draw(st.sampled_from([0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0])) for _ in shape]
        assume(all(n * s >= 1 for n, s in zip(shape, scales, strict=True)))
        inputs = [numbers(draw, *shape), region, np.asarray(scales, np.float32)]
    else:
        absent = None if opset >= 13 else np.zeros(0, np.float32)
        inputs = [numbers(draw, *shape), region, absent, np.asarray(each(draw, 1, 7, 2))]
    # Halfway between two elements rounding decides, which is another in single precision.
    assume(mode != "nearest" or (len(inputs) == 3 and place not in ("align_corners", "tf_crop_and_resize")))
    return "Resize", opset, inputs, attributes, (1, 2, 3)


@st.composite
def sampled(draw: st.DrawFn) -> Node:
    opset = draw(st.sampled_from([16, 20, 22]))
    prefix = "bi" if opset == 16 else ""
    mode = draw(st.sampled_from(["nearest", f"{prefix}linear", f"{prefix}cubic"]))
    attributes = {
        "mode": mode,
        "padding_mode": draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": draw(st.integers(0, 1)),
    }
    seed = draw(st.integers(0, 2**16))
    # Three digits, none of them round: nothing lies halfway.
    grid = np.random.default_rng(seed).integers(-2200, 2200, (1, 2, 2, 2)) / 1000 + 0.00037
    image = numbers(draw, 1, 1, *each(draw, 1, 3, 2))
    return "GridSample", opset, [image, grid.astype(np.float32)], attributes, ()


@st.composite
def aligned(draw: st.DrawFn) -> Node:
    opset = draw(st.sampled_from([10, 16]))
    attributes: dict[str, Any] = {
        "mode": draw(st.sampled_from(["avg", "max"])),
        "output_height": draw(st.integers(1, 3)),
        "output_width": draw(st.integers(1, 3)),
        "sampling_ratio": draw(st.integers(0, 2)),
        "spatial_scale": draw(st.sampled_from([1.0, 0.5])),
    }
    if opset == 16:
        names = ["half_pixel", "output_half_pixel"]
        attributes["coordinate_transformation_mode"] = draw(st.sampled_from(names))
    seed = draw(st.integers(0, 2**16))
    random = np.random.default_rng(seed)
    starts = random.uniform(-1, 7, (2, 2))
    regions = np.concatenate([starts, starts + random.uniform(0.1, 5, (2, 2))], axis=1)
    images = numbers(draw, 2, 1, *each(draw, 1, 6, 2))
    return "RoiAlign", opset, [images, regions.astype(np.float32), np.asarray([0, 1])], attributes, ()


STRATEGIES = [pools(), transposed(), resized(), sampled(), aligned()]
NAMES = ["pools", "transposed", "resized", "sampled", "aligned"]


def ask(strategy: st.SearchStrategy[Node], examples: int) -> None:
    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def asked(node: Node) -> None:
        op, opset, inputs, attributes, constants = node
        model, feeds = one_node(op, opset, inputs, attributes, constants=constants)
        if (why := disagreement(model, feeds)) is not None:
            assert excused(model, feeds), f"{why}\n  {attributes}"

    asked()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_edges(strategy: st.SearchStrategy[Node]) -> None:
    ask(strategy, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_edges_at_length(strategy: st.SearchStrategy[Node]) -> None:
    ask(strategy, MANY)
