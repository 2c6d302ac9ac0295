"""What sessions of ONNX Runtime cost in turns, by how their threads wait: two alike, each alone and one after
the other.

python benchmarks/onnxruntime_turns.py [--threads N] [--seconds S]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from collage_onnxruntime.session import Waiting, bind, open_session
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 64, 28, 28)


def convolution(threads: int, waiting: Waiting) -> Callable[[], object]:
    """A 3x3 convolution of 64 channels, 28x28, in a session of its own."""
    random = np.random.default_rng(0)
    weights = numpy_helper.from_array(random.standard_normal((64, 64, 3, 3), np.float32), "w")
    border = [helper.make_tensor_value_info(v, TensorProto.FLOAT, SHAPE) for v in "xy"]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "convolution", border[:1], border[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = open_session(model.SerializeToString(), threads, waiting)
    x, y = random.standard_normal(SHAPE, np.float32), np.empty(SHAPE, np.float32)
    return bind(session, {"x": x}, {"y": y})


def median_us(calls: list[Callable[[], object]], seconds: float) -> float:
    """Of one call, when they are made in turns."""
    taken = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for call in calls:
            call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6 / len(calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    for waiting in Waiting:
        first = convolution(options.threads, waiting)
        alone = median_us([first], options.seconds)
        turns = median_us([first, convolution(options.threads, waiting)], options.seconds)
        print(f"{waiting.value}: {alone:.0f} us alone, {turns:.0f} us in turns")


if __name__ == "__main__":
    main()
