"""Reports of placements that nobody had to measure."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from collage_core import Conversion, Group, Placement, Target, Variant
from collage_core.formats import channels_last, plain
from collage_core.ir import from_model
from collage_core.report.dataflow import dataflow_json
from collage_core.report.summary import placement_json
from collage_core.testing import make_model

__all__ = ["HOSTILE", "residual_report"]

HOSTILE = "</script><script>document.title='run'</script><b>&\"'"
"""A name that a page must show and not obey."""

_SHAPE = (1, 4, 8, 8)


def residual_report(blocks: int, swift: str = "swift", hostile: bool = False) -> dict[str, Any]:
    """Of so many blocks of four operators: a convolution with its Relu on one backend; a Sigmoid, and a sum
    with what the block was given, on another. Every tenth block's sum is channels-last, between conversions.
    A pool ends it.
    """
    nodes, groups, conversions = [], [], []
    rows, last = plain("float32", _SHAPE), channels_last("float32", _SHAPE)
    value = "x"
    for i in range(blocks):
        names = [f"{op}{i}" for op in ("conv", "relu", "sigmoid", "sum")]
        if hostile and not i:
            names[2] = HOSTILE
        nodes += [
            helper.make_node("Conv", [value, "w"], [f"c{i}"], name=names[0]),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=names[1]),
            helper.make_node("Sigmoid", [f"r{i}"], [f"s{i}"], name=names[2]),
            helper.make_node("Add", [f"s{i}", value], [f"y{i}"], name=names[3]),
        ]
        first = 4 * i
        groups.append(Group(swift, (first, first + 1), Variant((rows,), (rows,)), 0.5, 0.01))
        groups.append(Group("careful", (first + 2,), Variant((rows,), (rows,)), 0.25, 0.02))
        is_last = i % 10 == 0
        format = last if is_last else rows
        groups.append(Group("careful", (first + 3,), Variant((format, format), (format,)), 0.125, 0.0))
        if is_last:
            conversions += [Conversion(v, rows, last, "careful", 0.01) for v in (f"s{i}", value)]
            conversions.append(Conversion(f"y{i}", last, rows, swift, 0.02))
        value = f"y{i}"
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["pooled"], name="pool"))
    pooled = plain("float32", (1, 4, 1, 1))
    groups.append(Group("careful", (4 * blocks,), Variant((rows,), (pooled,)), 0.0625, 0.0))
    inputs = {"x": np.zeros(_SHAPE, np.float32)}
    model = make_model(nodes, inputs, {"w": np.zeros((4, 4, 1, 1), np.float32)}, ["pooled"])
    graph = from_model(model)
    placement = Placement(tuple(groups), tuple(conversions), Target("cpu", 2))
    report = {**placement_json(graph, placement), "device": "cpu", "threads": 2}
    for group in report["groups"]:
        group["rivals"] = [
            {"backend": "rival", "cost_ms": 0.75, "reason": None},
            {"backend": "absent", "cost_ms": None, "reason": "failed: it <crashed>"},
        ]
        group["ways"] = [{"variant": "(<plain>) -> (last)", "cost_ms": 0.625, "reason": None}]
    report["peaks"] = {"gflops": 100.0, "memory_gb_per_s": 10.0, "copy_gb_per_s": {"1000000": 10.0}}
    return {**report, "dataflow": dataflow_json(graph, placement, report)}
