"""Graphs in folders, for worker processes and other tools."""

from __future__ import annotations

from pathlib import Path

from collage_core.errors import CollageError
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import load_model
from collage_core.ir.onnx_write import WEIGHTS_FILE, write_external

__all__ = ["MODEL_FILE", "load_stored", "save_stored"]

MODEL_FILE = "model.onnx"
"""Name of the graph in a folder or bundle; its weights are in `WEIGHTS_FILE` beside it."""


def save_stored(graph: Graph, directory: Path) -> None:
    """Write the graph into a folder: `model.onnx`, which other tools read too, and its large constants as
    external data.

    Node ids are kept. CollageError if there is no room for it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / WEIGHTS_FILE).open("wb") as weights:
            model = write_external(graph, weights)
        (directory / MODEL_FILE).write_bytes(model.SerializeToString())
    except OSError as error:
        raise CollageError(f"cannot write the model to {directory}: {error.strerror or error}") from None


def load_stored(directory: Path) -> Graph:
    """Read what `save_stored` wrote; large constants are memory-mapped, read-only: a worker needs few of
    them, and the folder is ours.
    """
    return load_model(directory / MODEL_FILE, mapped=True)
