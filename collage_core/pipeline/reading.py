"""Where a model comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import onnx

from collage_core.ir import Graph, from_model, load_model
from collage_core.ir.passes import normalise
from collage_core.pipeline.progress import Progress

__all__ = ["read_graph"]


def read_graph(
    model: str | Path | onnx.ModelProto | Graph,
    shapes: Mapping[str, tuple[int, ...]] | None,
    skip_passes: Collection[str],
    progress: Progress,
) -> Graph:
    """The normalised graph of an ONNX file or of a model in memory; a graph is taken as it is."""
    if isinstance(model, Graph):
        return model
    progress.phase("reading the model")
    read = from_model(model, shapes) if isinstance(model, onnx.ModelProto) else load_model(model, shapes)
    return normalise(read, skip_passes)
