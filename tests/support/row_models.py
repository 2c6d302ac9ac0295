"""Small models in which rows are followed, and when two answers are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser

from collage_core.formats import Array
from collage_core.ir import Graph, from_model

__all__ = ["row_graph", "same"]


def same(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype.kind not in "fV":
        return np.array_equal(a, b)
    return np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-4, atol=1e-5, equal_nan=True)


def row_graph(
    text: str, inputs: str, opset: int = 20, shapes: dict[str, tuple[int, ...]] | None = None
) -> Graph:
    opsets = f'"" : {opset}, "com.acme" : 1'
    model = onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: [{opsets}]> g ({inputs}) => (float y) {{ {text} }}"
    )
    rng = np.random.default_rng(0)
    floats = {
        "w": (6, 6),
        "lw": (1, 20, 6),
        "lr": (1, 20, 5),
        "c": (1, 6),
        "k": (4, 3, 3, 3),
        "one_row": (4, 2),
    }
    whole: dict[str, Any] = {
        "square": [4, 3],
        "zero": 0,
        "one": 1,
        "zeros": [0],
        "ones": [1],
        "minus": [-1],
        "far": [-99],
    }
    whole |= {"heads": [2, 3], "flat": [-1, 6], "heads6": [6, -1], "two": [2, -1], "sixes": [6]}
    whole |= {"eights": [8], "far9": [999], "parted12": [1, 2], "parted11": [1, 1], "twos": [2]}
    constants: dict[str, Array] = {
        **{name: rng.standard_normal(shape).astype(np.float32) for name, shape in floats.items()},
        **{name: np.array(numbers, np.int64) for name, numbers in whole.items()},
        "v": np.ones(3, np.float32),
        "true": np.array(True),
        "half": np.array(0.5, np.float32),
    }
    read = {v for node in model.graph.node for v in node.input}
    for name in read & constants.keys():
        model.graph.initializer.append(onnx.numpy_helper.from_array(constants[name], name))
    return from_model(model, shapes)
