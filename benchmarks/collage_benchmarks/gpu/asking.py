"""`python -m collage_benchmarks.gpu.asking NETWORK LIBRARY PRECISIONS`: what one library says of all that its
plugin offers for a network, on a machine without a GPU. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from collage_benchmarks.networks import NETWORKS
from collage_core.backend import Backend, BackendKind
from collage_core.candidates import Candidate, Taken, generate_candidates
from collage_core.costs.roofline import work_of
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Graph, NodeSet, Subgraph, from_model
from collage_core.ir.passes import normalise
from collage_core.plugins import default_registry
from collage_core.target import PRECISIONS, Target

__all__ = ["ASKED", "PRECISIONS", "ask", "main"]

_ARCHITECTURES = ("sm_80", "sm_90")
_CAPABILITY = "8.9"
"""TensorRT for RTX builds for no 9.0."""
_MULTIPLYING = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])

_Ask = Callable[[Candidate], None]
"""Raises BackendError with the library's reason."""


def _of_cudnn() -> _Ask:
    from collage_cudnn.library import load
    from collage_cudnn.report import built

    library = load()

    def ask(candidate: Candidate) -> None:
        built(library, candidate.subgraph, candidate.variant)

    return ask


def _of_tvm() -> _Ask:
    from collage_tvm.cuda.build import program

    def ask(candidate: Candidate) -> None:
        for architecture in _ARCHITECTURES:
            program(candidate.subgraph, candidate.variant, architecture).compiled()

    return ask


def _of_cublas() -> _Ask:
    from collage_cublas.planning import plan

    def ask(candidate: Candidate) -> None:
        found = plan(candidate.subgraph, candidate.variant)
        if isinstance(found, Refusal):
            raise BackendError(str(found))

    return ask


def _of_tensorrt() -> _Ask:
    from collage_tensorrt.building import parsed
    from collage_tensorrt.editions import EDITIONS
    from collage_tensorrt.library import loaded

    library = loaded(EDITIONS[1])

    def ask(candidate: Candidate) -> None:
        library.engine(parsed(library, candidate.subgraph, candidate.variant), _CAPABILITY)

    return ask


ASKED: Mapping[str, Callable[[], _Ask]] = {
    "cudnn": _of_cudnn,
    "cublas": _of_cublas,
    "tensorrt": _of_tensorrt,
    "tvm-cuda": _of_tvm,
}
"""By backend: how its library is asked. Of cuBLASLt the plugin alone is."""


def ask(graph: Graph, backend: Backend, asked: _Ask, target: Target) -> dict[str, Any]:
    """Each structure in each variant once. Shares of the flops: of convolutions and products, those in some
    group that is accepted.
    """
    candidates = generate_candidates(graph, [backend], target, taken=_taken(graph, backend, target))
    own = [c for c in candidates.candidates if c.backend == backend.name]
    reasons: dict[tuple[str, str], str | None] = {}
    for c in own:
        key = c.subgraph.key, str(c.variant)
        if key not in reasons:
            try:
                asked(c)
                reasons[key] = None
            except BackendError as error:
                reasons[key] = str(error)
    accepted = [c for c in own if reasons[c.subgraph.key, str(c.variant)] is None]
    flops = {n.id: work_of(Subgraph(graph, [n.id])).flops for n in graph.nodes if n.op_type in _MULTIPLYING}
    covered = {i for c in accepted for i in c.subgraph.node_set}
    return {
        "offered": len(reasons),
        "accepted": sum(reason is None for reason in reasons.values()),
        "declined": dict(Counter(reason for reason in reasons.values() if reason is not None)),
        "not_offered": dict(
            Counter(r.reason for r in candidates.refusals.get(backend.name, ())).most_common(12)
        ),
        "flops_share": sum(f for i, f in flops.items() if i in covered) / max(sum(flops.values()), 1),
        "nodes_share": len(covered) / max(len(graph.nodes), 1),
    }


def _taken(graph: Graph, backend: Backend, target: Target) -> dict[str, Taken]:
    """Of a graph library: what it takes of the single nodes."""
    if backend.info().kind is not BackendKind.GRAPH:
        return {}
    answers = backend.supported([Subgraph(graph, [n.id]) for n in graph.nodes], target)
    told = list(zip(graph.nodes, answers, strict=True))
    nodes = NodeSet(n.id for n, refusal in told if refusal is None)
    return {backend.name: Taken(nodes, tuple(refusal for _, refusal in told if refusal is not None))}


def main() -> int:
    network, library, precisions = sys.argv[1:]
    begun_s = time.monotonic()
    graph = normalise(from_model(NETWORKS[network].build()))
    stored = tuple(PRECISIONS[p] for p in precisions.split(",") if p != "fp32")
    answer = ask(
        graph, default_registry().backend(library), ASKED[library](), Target("cpu", 1, stored, ("cuda",))
    )
    told = {"network": network, "library": library, "precisions": precisions, **answer}
    json.dump({**told, "seconds": time.monotonic() - begun_s}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
