"""What an image takes of a batch of two, beside one by itself.

    python benchmarks/batches.py squeezenet dcgan inception_v2 --out docs/results/batches

Each network is optimised for one image and for two, on all processors. Both placements are opened in one
process, and run in turn. Told is by how much an image of two takes less: what a server that answers two
requests at a time could gain, if it put them together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from collage_benchmarks.networks import NETWORKS, add_networks
from onnx import numpy_helper

from collage_core import Context, build, optimize
from collage_core.pipeline.effort import EFFORTS
from collage_core.report.tables import Table
from collage_core.target import processor

_UNTIMED, _TIMED = 3, 5
"""Runs of a turn: in the first ones caches hold what the other one has left."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_networks(parser)
    parser.add_argument("--turns", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--effort", default="quick", choices=[*EFFORTS], help="default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where NETWORK.json is written")
    args = parser.parse_args()
    rows = []
    for name in args.networks:
        told = _compared(name, args)
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / f"{name}.json").write_text(json.dumps(told, indent=1))
        of_one, of_two = ([turn[n] for turn in told["turns_ms"]] for n in (0, 1))
        low, gain, high = statistics.quantiles([a / b for a, b in zip(of_one, of_two, strict=True)], n=4)
        medians = [f"{statistics.median(turns):.3f}" for turns in (of_one, of_two)]
        rows.append((name, *told["chosen"], *medians, f"{gain:.3f} ({low:.3f} to {high:.3f})"))
    header = ("network", "chosen for one", "for two", "ms", "ms each of two", "gain (quartiles of turns)")
    print(Table(header, rows, right=range(3, 6), title=processor().model))
    return 0


def _compared(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Medians of each turn, in ms an image: of one, of two."""
    model = NETWORKS[name].build()
    chosen: list[str] = []
    contexts: list[Context] = []
    with tempfile.TemporaryDirectory() as folder:
        for images in (1, 2):
            costs = Path(folder, "costs.sqlite")
            found = optimize(_of(model, images), costs=costs, effort=EFFORTS[args.effort])
            chosen.append(found.chosen)
            contexts.append(build(found.graph, found.placement).context())
    turns_ms = [
        [_turn_ms(context) / images for images, context in enumerate(contexts, 1)] for _ in range(args.turns)
    ]
    head = {"network": name, "processor": processor().model, "threads": found.placement.target.threads}
    return {**head, "effort": args.effort, "chosen": chosen, "turns_ms": turns_ms}


def _turn_ms(context: Context) -> float:
    took_s = []
    for number in range(_UNTIMED + _TIMED):
        begun_s = time.perf_counter()
        context.execute()
        if number >= _UNTIMED:
            took_s.append(time.perf_counter() - begun_s)
    return 1e3 * statistics.median(took_s)


def _of(model: onnx.ModelProto, images: int) -> onnx.ModelProto:
    """The network for so many images: its inputs', and its Reshapes', first dimension is 1."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in weights:
            value.type.tensor_type.shape.dim[0].dim_value = images
    for value in graph.output:
        value.type.tensor_type.shape.dim[0].dim_value = images
    del graph.value_info[:]
    constants = {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
    for shape in {node.input[1] for node in graph.node if node.op_type == "Reshape"}:
        tensor = weights.get(shape) or constants[shape]
        sizes = np.array(numpy_helper.to_array(tensor))
        if sizes[0] == 1:
            sizes[0] = images
            tensor.CopyFrom(numpy_helper.from_array(sizes, tensor.name))
    return changed


if __name__ == "__main__":
    sys.exit(main())
