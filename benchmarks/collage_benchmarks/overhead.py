"""`python -m collage_benchmarks.overhead`: what one step of an executable costs beyond its arithmetic.

A chain of operators on 16 elements, one kernel each, of a real operator library: their arithmetic takes
nanoseconds, so time per step is what Collage and the library's own call cost together. Medians over whole
runs of the chain, interleaved between backends.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from statistics import median, quantiles

import numpy as np
from onnx import TensorProto, helper

from collage_core.backend import Backend, BackendKind
from collage_core.errors import CollageError, Refusal
from collage_core.ir import Graph, NodeSet, Subgraph, from_model
from collage_core.placement import Group, Placement
from collage_core.plugins import default_registry
from collage_core.report.tables import Table
from collage_core.runtime import Context, build
from collage_core.target import Target

__all__ = ["main"]

_STEPS = 100
_ELEMENTS = 16
_OPERATORS = ("Relu", "Tanh", "Sigmoid", "Abs")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m collage_benchmarks.overhead", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--backends", metavar="A,B", help="operator libraries to measure (default: all available)"
    )
    parser.add_argument("--rounds", type=int, default=300, help="runs of each chain (default: 300)")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    args = parser.parse_args(arguments)
    registry = default_registry()
    try:
        backends = registry.available(args.backends.split(",") if args.backends else None)
    except CollageError as error:
        print(f"overhead: {error}", file=sys.stderr)
        return 1
    chosen = [b for b in backends if b.info().kind is BackendKind.OPERATOR]
    contexts = {b.name: _chain_on(b) for b in chosen}
    times_us: dict[str, list[float]] = {name: [] for name in contexts}
    for round_number in range(args.rounds + 10):
        for name, context in contexts.items():
            start = time.perf_counter_ns()
            context.execute()
            if round_number >= 10:
                times_us[name].append((time.perf_counter_ns() - start) / _STEPS / 1e3)
    report = {
        name: {
            "us_per_step": median(t),
            "iqr_us": quantiles(t, n=4)[2] - quantiles(t, n=4)[0],
            "runs": len(t),
        }
        for name, t in times_us.items()
    }
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        rows = [
            (n, f"{r['us_per_step']:.2f}", f"{r['iqr_us']:.2f}", str(r["runs"])) for n, r in report.items()
        ]
        print(Table(("backend", "us per step", "IQR us", "runs"), rows, right=[1, 2, 3]))
    return 0


def _graph() -> Graph:
    nodes = [
        helper.make_node(_OPERATORS[i % len(_OPERATORS)], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}")
        for i in range(_STEPS)
    ]
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [_ELEMENTS]) for v in ("v0", f"v{_STEPS}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return from_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))


def _chain_on(backend: Backend) -> Context:
    """The chain with one group per node, nothing fused, bound and filled."""
    graph, target = _graph(), Target("cpu", 1)
    groups = []
    for n in graph.nodes:
        variants = backend.variants(Subgraph(graph, NodeSet([n.id])), target)
        if isinstance(variants, Refusal):
            raise CollageError(f"{backend.name} declines {n}: {variants.reason}")
        groups.append(Group(backend.name, (n.id,), variants[0]))
    context = build(graph, Placement(tuple(groups), (), target)).context()
    context.run({"v0": np.linspace(-1, 1, _ELEMENTS, dtype=np.float32)})
    return context


if __name__ == "__main__":
    sys.exit(main())
