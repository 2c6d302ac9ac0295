"""Graphs written as text, for the tests of patterns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest

from collage_core.ir import Graph, from_model

Parse = Callable[..., Graph]


@pytest.fixture(scope="session")
def parse() -> Parse:
    """`parse("(float[3] x) => (float y) { [n] y = Add(x, w) }", w=(3,))`: a graph.

    Keywords are the shapes of random constants, or arrays.
    """

    def make(text: str, opset: int = 21, **constants: tuple[int, ...] | np.ndarray) -> Graph:
        header = f'<ir_version: 10, opset_import: ["" : {opset}, "ours" : 1]>'
        model = onnx.parser.parse_model(f"{header} g {text}")
        rng = np.random.default_rng(0)
        for name, given in constants.items():
            data = rng.random(given, dtype=np.float32) if isinstance(given, tuple) else given
            model.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
        return from_model(model)

    return make
