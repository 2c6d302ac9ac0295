"""A graph in a folder of its own, which workers read."""

from __future__ import annotations

import weakref

from collage_core.ir import Graph, save_stored
from collage_core.measuring.temporary import TemporaryFolder

__all__ = ["StoredGraph"]


class StoredGraph:
    """graph: normalised. folder: where it is stored (`ir.load_stored`), as long as this object lives."""

    def __init__(self, graph: Graph) -> None:
        temporary = TemporaryFolder()
        self.graph = graph
        self.folder = temporary.path / "graph"
        weakref.finalize(self, temporary.remove)
        save_stored(graph, self.folder)
