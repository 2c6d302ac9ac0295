"""Which Resizes libraries may compute otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collage_core.ir import Operator, TensorType
from collage_core.resizing import doubtful_resize
from collage_core.testing import make_graph, node

_X = {"x": np.zeros((1, 1, 5, 6), np.float32)}
_SYMMETRIC = {"coordinate_transformation_mode": "half_pixel_symmetric"}


def _said(scales: Any = None, sizes: Any = None, opset: int = 19, **attributes: Any) -> str | None:
    given = {"s": np.array(scales, np.float32)} if sizes is None else {"z": np.array(sizes)}
    names = ["x", "", "s"] if sizes is None else ["x", "", "", "z"]
    graph = make_graph([node("Resize", names, "y", **attributes)], _X, given, opset=opset)
    return doubtful_resize(Operator(graph, graph.nodes[0]))


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("align_corners", {"scales": [1, 1, 0.5, 1], "coordinate_transformation_mode": "align_corners"}),
        ("down to one", {"sizes": [1, 1, 1, 6], "mode": "cubic"}),
        ("last bits", {"scales": [1, 1, 0.6, 1], "nearest_mode": "floor"}),
        ("last bits", {"scales": [1, 1, 1.7, 2.3]}),
        ("last bits", {"scales": [1, 1, 0.5, 1], "nearest_mode": "floor", **_SYMMETRIC}),
        ("last bits", {"scales": [1, 1, 0.3, 1], "nearest_mode": "floor", **_SYMMETRIC}),
        ("last bits", {"scales": [0.6], "axes": [2], "nearest_mode": "floor"}),
        ("last bits", {"scales": [0.6], "axes": [-2], "nearest_mode": "floor"}),
        ("leaves 5", {"scales": [1, 1, 1.1, 0.5], "mode": "linear"}),
        ("one ratio", {"sizes": [2, 2], "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"}),
        ("one ratio", {"sizes": [5, 3], "axes": [-2, -1], "keep_aspect_ratio_policy": "not_larger"}),
    ],
)
def test_it_says_why(reason: str, arguments: Any) -> None:
    if reason == "down to one":
        arguments = {**arguments, "coordinate_transformation_mode": "pytorch_half_pixel"}
    assert reason in str(_said(**arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        {"scales": [1, 1, 2, 2]},
        {"sizes": [10, 20], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        {"scales": [1, 1, 2, 3], "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
        {"scales": [1, 1, 0.6, 0.7], "mode": "linear"},
        {"scales": [1, 1, 0.5, 0.5], "mode": "cubic"},
        {"scales": [1, 1, 2, 0.5], **_SYMMETRIC},
        {"scales": [1, 1, 0.5, 1], "mode": "linear", **_SYMMETRIC},
        {"sizes": [1, 1, 9, 11], "mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"scales": [1, 1, 2, 2], "mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"sizes": [1, 1, 1, 1], "mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    ],
)
def test_nothing_is_said_of_others(arguments: Any) -> None:
    assert _said(**arguments) is None


def test_nothing_is_said_of_nothing() -> None:
    graph = make_graph(
        [node("Resize", ["x", "", "s"], "y")],
        {"x": np.zeros((0, 1, 5, 6), np.float32)},
        {"s": np.array([1, 1, 2, 2], np.float32)},
        opset=19,
    )
    assert doubtful_resize(Operator(graph, graph.nodes[0])) is None


def test_of_computed_scales_only_the_corners_count() -> None:
    inputs = {**_X, "s": np.array([1, 1, 2, 2], np.float32)}
    for how, doubtful in (("align_corners", True), ("half_pixel", False)):
        made = node("Resize", ["x", "", "s"], "y", coordinate_transformation_mode=how)
        graph = make_graph([made], inputs, types={"y": TensorType("float32", (1, 1, 10, 12))})
        assert (doubtful_resize(Operator(graph, graph.nodes[0])) is not None) == doubtful


@pytest.mark.parametrize(("mode", "doubtful"), [("nearest", False), ("linear", True), ("cubic", True)])
def test_means_of_integers_hang_on_their_last_bits(mode: str, doubtful: bool) -> None:
    x = {"x": np.zeros((1, 1, 5, 6), np.uint8)}
    made = node("Resize", ["x", "", "s"], "y", mode=mode)
    graph = make_graph([made], x, {"s": np.array([1, 1, 2, 2], np.float32)}, opset=19)
    assert (doubtful_resize(Operator(graph, graph.nodes[0])) is not None) == doubtful
