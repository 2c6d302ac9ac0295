"""What a call of a compiled model of OpenVINO costs, and what going from one model to another costs:

    python benchmarks/openvino_calls.py

With one arena for all models, which is what collage-openvino uses where the target has all processors, and
with one for each. Microseconds, medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np
import onnx
from collage_openvino import kernel
from collage_openvino.settings import properties
from onnx import helper, numpy_helper

from collage_core.backend import Bound, plain_variant
from collage_core.device import Target
from collage_core.ir import Subgraph, from_model

_CALLS = 2000


def main() -> None:
    target = Target.default()
    for sharing in ("YES", "NO"):

        def chosen(target: Target, sharing: str = sharing) -> Mapping[str, str]:
            return {**properties(target), "EXCLUSIVE_ASYNC_REQUESTS": sharing}

        with mock.patch.object(kernel, "properties", chosen):
            small = _bound(_model("Neg", (8,)), target)
            first, second = (_bound(_convolution(64, 28), target) for _ in range(2))
        print(
            f"one arena for all: {sharing.lower():3}  small node {_median_us(small):6.1f}   "
            f"convolution {_median_us(first):6.1f}   two in turn {_median_us(first, second):6.1f}"
        )


def _median_us(*calls: Callable[[], object]) -> float:
    times = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        for call in calls:
            call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _bound(model: onnx.ModelProto, target: Target) -> Bound:
    graph = from_model(model)
    group = Subgraph(graph, graph.all_nodes)
    arrays = [np.ones(graph.shape_of(v), np.float32) for v in (*group.inputs, *group.outputs)]
    built = kernel.build_kernel(group, plain_variant(group), target)
    return built.bind(arrays[:1], arrays[1:], np.empty(0, np.uint8))


def _convolution(channels: int, size: int) -> onnx.ModelProto:
    weights = np.full((channels, channels, 3, 3), 0.01, np.float32)
    return _model("Conv", (1, channels, size, size), weights, pads=[1] * 4)


def _model(
    op: str, shape: tuple[int, ...], weights: np.ndarray | None = None, **attributes: Any
) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(v, onnx.TensorProto.FLOAT, shape) for v in "xo"]
    constants = [] if weights is None else [numpy_helper.from_array(weights, "w")]
    node = helper.make_node(op, ["x", *(c.name for c in constants)], ["o"], **attributes)
    return helper.make_model(helper.make_graph([node], "bench", values[:1], values[1:], constants))


if __name__ == "__main__":
    main()
