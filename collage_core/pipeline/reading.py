"""Where a model comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from collage_core.ir import Graph, from_model, load_model
from collage_core.ir.passes import Pass, PassFault, passes_without, run_passes
from collage_core.measuring.progress import Progress
from collage_core.plugins import Registry

__all__ = ["Reading", "read_model"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A model as it is placed, and as it was given.

    graph: normalised. original: as the model says it, in its own opset, no pass applied; None where a graph
    was given, which is taken as it is. passes: those that made `graph`, in order. faults: those that failed.
    """

    graph: Graph
    original: Graph | None = None
    passes: tuple[Pass, ...] = ()
    faults: tuple[PassFault, ...] = ()


def read_model(
    model: str | Path | onnx.ModelProto | Graph,
    shapes: Mapping[str, tuple[int, ...]] | None,
    skip_passes: Collection[str],
    registry: Registry,
    progress: Progress,
) -> Reading:
    """Read an ONNX file or a model in memory, and normalise it; a graph is taken as it is."""
    if isinstance(model, Graph):
        return Reading(model)
    progress.phase("reading the model")
    passes = passes_without(skip_passes)
    if isinstance(model, onnx.ModelProto):
        original = from_model(model, shapes, definitions=registry.definitions)
    else:
        original = load_model(model, shapes, definitions=registry.definitions)
    faults: list[PassFault] = []
    graph = run_passes(original, passes, faults.append)
    failed = {fault.name for fault in faults}
    return Reading(graph, original, tuple(p for p in passes if p.name not in failed), tuple(faults))
