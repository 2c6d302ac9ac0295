"""What the comparisons of whole networks call right, and whom they count among the rivals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from scripts import script

from collage_core.ir import Graph, from_model


@pytest.fixture(scope="module")
def two_level() -> Any:
    """The script, as a module."""
    return script("two_level")


@pytest.fixture
def graph() -> Graph:
    text = """<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }"""
    return from_model(onnx.parser.parse_model(text))


def test_answers_beyond_the_tolerance_are_told(two_level: Any, graph: Graph) -> None:
    right = {"y": np.array([1.0, 2.0], np.float32)}
    near, far = ({"y": right["y"] + np.float32(d)} for d in (1e-5, 1e-2))
    outputs = {"collage": right, "near": near, "far": far, "failed": {}}
    assert list(two_level._disagreeing(graph, outputs)) == ["far"]
    assert "more than 0.0001" in two_level._disagreeing(graph, outputs)["far"]
    assert list(two_level._disagreeing(graph, {**outputs, "collage": {}})) == ["near", "far"]
