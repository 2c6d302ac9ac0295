"""What cuDNN itself says of a model's groups: `python -m collage_cudnn.report model.onnx [bf16|fp16]`.

It asks about the GPU that is here, or about the one that a file describes (`COLLAGE_CUDNN_DESCRIPTION`).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from collage_cuda import NAME as DEVICE_NAME

from collage_core import find_matches, generate, load_model, normalise
from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Graph, Subgraph
from collage_core.target import PRECISIONS, Target
from collage_cudnn.backend import CudnnBackend
from collage_cudnn.description import Call, Description
from collage_cudnn.library import Library, load
from collage_cudnn.planning.planner import plan

__all__ = ["Report", "built", "groups", "main", "report"]


@dataclass
class Report:
    """Groups, one of each structural key, by what becomes of them."""

    accepted: list[tuple[Subgraph, Variant, str]] = field(default_factory=list)
    """With the plan that was built."""
    declined: list[tuple[Subgraph, Variant | None, str]] = field(default_factory=list)
    """With the reason. Without a variant: the plugin's own."""

    def __str__(self) -> str:
        lines = [f"{len(self.accepted)} variants accepted, {len(self.declined)} declined"]
        for group, variant, name in self.accepted:
            lines.append(f"  yes {group} {variant}: {name}")
        counted = Counter((str(g), str(v), reason) for g, v, reason in self.declined)
        lines += [f"  no  {g} {v}: {reason} (x{n})" for (g, v, reason), n in sorted(counted.items())]
        return "\n".join(lines)


def groups(graph: Graph) -> list[Subgraph]:
    """All that patterns and rules find, one of each structural key."""
    backend = CudnnBackend()
    found: dict[str, Subgraph] = {}
    for pattern in backend.patterns():
        for match in find_matches(graph, pattern.pattern):
            found.setdefault(match.subgraph.key, match.subgraph)
    for rule in backend.rules():
        for nodes in generate(graph, rule).groups:
            group = Subgraph(graph, nodes)
            found.setdefault(group.key, group)
    return list(found.values())


def report(library: Library, candidates: Iterable[Subgraph], target: Target) -> Report:
    """Every variant is planned, and the first plan that can be is built."""
    backend, found = CudnnBackend(), Report()
    for group in candidates:
        offered = backend.variants(group, target)
        if isinstance(offered, Refusal):
            found.declined.append((group, None, offered.reason))
            continue
        for variant in offered:
            try:
                found.accepted.append((group, variant, built(library, group, variant)))
            except BackendError as error:
                found.declined.append((group, variant, str(error)))
    return found


def built(library: Library, group: Subgraph, variant: Variant) -> str:
    """The first plan of each way to ask that can be built; BackendError with the first reason if none can."""
    found, reasons = [], []
    for asked in plan(group, variant):
        try:
            found.append(_first(library, asked))
        except BackendError as error:
            reasons.append(str(error))
    if not found:
        raise BackendError(reasons[0])
    return "; ".join(found)


def _first(library: Library, asked: Call | Description) -> str:
    if isinstance(asked, Call):
        return asked.kind
    graph = library.graph(asked)
    index = next((i for i in range(graph.count) if graph.build(i)), None)
    if index is None:
        raise BackendError("none of its plans can be built")
    return f"{graph.plan_name(index)}, {index + 1} of {graph.count}, {graph.workspace_bytes(index)} bytes"


def main(arguments: Sequence[str]) -> None:
    path, *precisions = arguments
    target = Target("cpu", 1, tuple(PRECISIONS[p] for p in precisions), (DEVICE_NAME,))
    begun = time.monotonic()
    print(report(load(), groups(normalise(load_model(path))), target))
    print(f"{time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
