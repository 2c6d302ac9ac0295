"""How long TVM's kernels take to build when this machine has compiled them before.

    python benchmarks/kernels/bench_warm_load.py

Builds 100 different kernels (layer normalisations, GELUs, masked softmaxes, transposes, Mish activations) in
one process, which compiles them, and again in another, which finds their objects on disk: lowering, looking
up, loading. Seconds of both, the import of TVM apart. The exit status is 1 if the second takes more than 1 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
from onnx import helper

from collage_core.backend import plain_variant
from collage_core.ir import Subgraph, from_model
from collage_core.plugins import default_registry
from collage_core.target import Target

KERNELS = 100
LIMIT_S = 1.0


def groups() -> list[Subgraph]:
    found = []
    none: dict[str, list[int]] = {}
    number: list[int] = []
    for width in range(700, 700 + KERNELS // 5):
        node, row = helper.make_node, [128, width]
        for nodes, inputs, constants in (
            (
                [node("Add", ["x", "r"], ["y"]), node("LayerNormalization", ["y", "g", "b"], ["o"])],
                {"x": row, "r": row},
                {"g": [width], "b": [width]},
            ),
            (
                [node("Add", ["x", "b"], ["y"]), node("Gelu", ["y"], ["o"])],
                {"x": row},
                {"b": [width]},
            ),
            (
                [
                    node("Mul", ["x", "scale"], ["y"]),
                    node("Add", ["y", "mask"], ["z"]),
                    node("Softmax", ["z"], ["o"]),
                ],
                {"x": [1, 12, 8, width], "mask": [1, 1, 1, width]},
                {"scale": number},
            ),
            ([node("Transpose", ["x"], ["o"], perm=[0, 2, 1, 3])], {"x": [1, 16, 12, width]}, none),
            ([node("Mish", ["x"], ["o"])], {"x": row}, none),
        ):
            found.append(_group(nodes, inputs, constants))
    return found


def _group(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], constants: dict[str, list[int]]
) -> Subgraph:
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "group",
        [helper.make_tensor_value_info(name, float32, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("o", float32, None)],
        [onnx.numpy_helper.from_array(np.full(s, 0.5, np.float32), n) for n, s in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    read = from_model(onnx.shape_inference.infer_shapes(model))
    return Subgraph(read, read.all_nodes, ["o"])


def build_all() -> None:
    tvm, target = default_registry().backend("tvm"), Target("cpu", 2)
    parts = groups()
    tvm.build(parts[0], plain_variant(parts[0]), target)  # imports TVM
    start = time.perf_counter()
    for part in parts:
        tvm.build(part, plain_variant(part), target)
    print(f"{time.perf_counter() - start:.2f}")


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        for what in ("compiled", "found on disk"):
            child = subprocess.run(
                [sys.executable, __file__, "build"],
                env=os.environ | {"COLLAGE_HOME": home},
                check=True,
                capture_output=True,
                text=True,
            )
            print(f"{KERNELS} kernels {what}: {child.stdout.strip()} s")
    return 1 if float(child.stdout) > LIMIT_S else 0


if __name__ == "__main__":
    if sys.argv[1:]:
        build_all()
    else:
        sys.exit(main())
