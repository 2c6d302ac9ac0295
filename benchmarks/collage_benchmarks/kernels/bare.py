"""A model's matrix products and nothing else: what the rest of the model is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collage_benchmarks.kernels.batch import call_s, check
from collage_core.backend import Backend, Bound, Variant
from collage_core.devices import IMMEDIATE
from collage_core.errors import CollageError, Refusal
from collage_core.formats import Array, Format, empty, plain
from collage_core.ir import Graph, Node, Subgraph, load_stored
from collage_core.plugins import default_registry
from collage_core.target import Target

__all__ = ["BareProducts", "open_bare"]


Buffers = dict[tuple[tuple[int, ...], Format, int], Array]
"""Of activations, by shape, format and position among a product's operands, its result the last."""


class BareProducts:
    """A `Runnable` that calls kernels one after the other."""

    def __init__(self, calls: Sequence[Bound]) -> None:
        self.calls = tuple(calls)

    def run(self) -> None:
        for call in self.calls:
            call()

    def outputs(self) -> dict[str, Array]:
        return {}


def open_bare(graph_folder: Path, backend: str, target: Target) -> BareProducts:
    """Every MatMul of a stored graph alone, in the graph's order, each with its own weights, activations of
    one shape in the same buffers, as they share an arena in the whole, in the fastest variant that the
    backend offers. Runs in a worker.

    CollageError if the backend declines one, or if an answer is not NumPy's.
    """
    graph = load_stored(graph_folder)
    chosen: dict[str, Variant] = {}
    buffers: Buffers = {}
    library = default_registry().backend(backend)
    products = [n for n in graph.nodes if n.op_type == "MatMul"]
    return BareProducts([_fastest(library, graph, node, target, chosen, buffers) for node in products])


def _fastest(
    backend: Backend, graph: Graph, node: Node, target: Target, chosen: dict[str, Variant], buffers: Buffers
) -> Bound:
    """The product in its fastest variant, which is looked for once per structural key."""
    group = Subgraph(graph, [node.id], node.outputs)
    if group.key in chosen:
        return _bound(backend, group, chosen[group.key], target, buffers)
    offered = backend.variants(group, target)
    if isinstance(offered, Refusal):
        raise CollageError(f"{backend.name} declines {node.name}: {offered}")
    bounds = [_bound(backend, group, variant, target, buffers) for variant in offered]
    times_s = [call_s(bound) for bound in bounds]
    best = times_s.index(min(times_s))
    chosen[group.key] = offered[best]
    return bounds[best]


def _bound(backend: Backend, group: Subgraph, variant: Variant, target: Target, buffers: Buffers) -> Bound:
    graph, [node] = group.graph, group.nodes
    rng = np.random.default_rng(node.id)

    def shared(name: str, format: Format, position: int) -> Array:
        key = graph.shape_of(name), format, position
        if key not in buffers:
            buffers[key] = empty(graph.shape_of(name), format)
        return buffers[key]

    inputs = {}
    for k, (name, format) in enumerate(zip(group.inputs, variant.inputs, strict=True)):
        inputs[name] = shared(name, format, k)
        inputs[name][...] = rng.standard_normal(graph.shape_of(name), np.float32)
    output = shared(group.outputs[0], variant.outputs[0], len(inputs))
    kernel = backend.build(group, variant, target)
    workspace = empty((kernel.workspace_bytes,), plain("uint8", (kernel.workspace_bytes,)))
    bound = kernel.bind(list(inputs.values()), [output], workspace, IMMEDIATE)
    if code := bound():
        raise CollageError(f"{node.name}: the kernel returned error code {code!r}")
    a, b = (graph.constants[v] if graph.is_constant(v) else inputs[v] for v in node.inputs)
    check({node.name: output}, {node.name: a @ b})
    return bound
