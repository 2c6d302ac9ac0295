"""A placement by hand: two backends, a view, and values that are converted on their way."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from collage_core import Conversion, Group, Placement, Target, Variant
from collage_core.formats import BFLOAT16, Format, channels_last, plain
from collage_core.ir import Graph, from_model
from collage_core.placement import VIEW
from collage_core.testing import make_model

__all__ = ["PEAKS", "converted", "report_of"]

PEAKS = {"gflops": 1e-3, "memory_gb_per_s": 1e-3, "copy_gb_per_s": {"1000": 2e-3, "100000": 1e-3}}
"""Of a machine that makes a thousand times a thousand steps a second."""

_SHAPE = (1, 8, 2, 2)
_ROWS, _LAST = plain("float32", _SHAPE), channels_last("float32", _SHAPE)
_ROUNDED = Format.of(BFLOAT16, _SHAPE, _LAST.layout)


def converted() -> tuple[Graph, Placement]:
    """A convolution, whose value one reads as it is and one converted; a Relu that stores bfloat16, which
    takes two conversions to read; a sum; a view.
    """
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name='re"lu\\'),
        helper.make_node("Add", ["c", "r"], ["s"], name="sum"),
        helper.make_node("Flatten", ["s"], ["f"], name="flat"),
    ]
    inputs = {"x": np.zeros((1, 4, 2, 2), np.float32)}
    model = make_model(nodes, inputs, {"w": np.zeros((8, 4, 1, 1), np.float32)}, ["f", "c"])
    graph = from_model(model)
    image = plain("float32", (1, 4, 2, 2))
    groups = (
        Group("swift", (0,), Variant((image,), (_LAST,)), 0.5, 0.01),
        Group("swift", (1,), Variant((_LAST,), (_ROUNDED,)), 0.25, 0.02),
        Group("other", (2,), Variant((_ROWS, _ROWS), (_ROWS,)), 2.0, 0.0),
        Group(VIEW, (3,), Variant((_ROWS,), (plain("float32", (1, 32)),)), 0.0, 0.0),
    )
    conversions = (
        Conversion("c", _LAST, _ROWS, "swift", 0.125),
        Conversion("r", _ROUNDED, _LAST, "swift", 0.25),
        Conversion("r", _LAST, _ROWS, "other", 0.125),
    )
    return graph, Placement(groups, conversions, Target("cpu", 2))


def report_of(graph: Graph, placement: Placement, **told: Any) -> dict[str, Any]:
    """What `collage explain` makes its pictures from; `told`: what else the report says."""
    from collage_core.report.dataflow import dataflow_json
    from collage_core.report.summary import placement_json

    report = {**placement_json(graph, placement), "device": "cpu", **told}
    return {**report, "dataflow": dataflow_json(graph, placement, report)}
