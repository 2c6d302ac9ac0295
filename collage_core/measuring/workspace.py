"""What worker processes need from disk: the graph, and the values of one run of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from collage_run.executable import check_array

from collage_core.costs.inputs import synthesise_inputs
from collage_core.costs.recording import Recording, disturbed_values, record
from collage_core.formats import Array
from collage_core.ir import MODEL_FILE, Graph, save_stored
from collage_core.ir.digests import graph_digest
from collage_core.measuring.temporary import TemporaryFolder
from collage_core.runtime.session import save_arrays
from collage_core.worker import Worker

__all__ = ["Workspace", "digest_of_inputs"]


class Workspace:
    """A temporary folder for one graph, filled as its parts are asked for and removed on exit.

    inputs: what the model is run on to record values; made up from `seed` where None.
    """

    def __init__(self, graph: Graph, inputs: Mapping[str, Array] | None = None, seed: int = 0) -> None:
        self.graph = graph
        self.inputs: Mapping[str, Array] = synthesise_inputs(graph, seed) if inputs is None else inputs
        for name in graph.inputs:
            check_array("input", name, self.inputs.get(name), graph.type_of(name))
        self._folder = TemporaryFolder()
        self._rounded: dict[str, dict[str, Array]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.remove()

    @cached_property
    def graph_folder(self) -> Path:
        """Where the graph is stored (`ir.load_stored`)."""
        folder = self._folder.path / "graph"
        save_stored(self.graph, folder)
        return folder

    @property
    def model_file(self) -> Path:
        """The stored graph as an ONNX file, for tools that read those."""
        return self.graph_folder / MODEL_FILE

    @cached_property
    def recording(self) -> Recording:
        """Every value of one run on the reference."""
        return self._recorded(None)

    @property
    def is_recorded(self) -> bool:
        """Whether the reference has run."""
        return "recording" in vars(self)

    def record(self, worker: Worker | None = None) -> None:
        """Make the recording now, unless it is made. worker: a `reference_worker` that runs already."""
        if not self.is_recorded:
            self.recording = self._recorded(worker)

    def _recorded(self, worker: Worker | None) -> Recording:
        return record(self.graph_folder, self.inputs, self._folder.path / "values", worker)

    def expected_outputs(self) -> dict[str, Array]:
        """The reference's answer for `inputs`, by output name."""
        graph = self.graph
        return {
            v: graph.constants[v] if graph.is_constant(v) else self.recording.load(v) for v in graph.outputs
        }

    def rounded_outputs(self, dtype: str) -> dict[str, Array]:
        """The reference's answer if it rounds everything to `dtype` (`disturbed_values`)."""
        if dtype not in self._rounded:
            self._rounded[dtype] = disturbed_values(self.graph_folder, self.inputs, dtype)
        return self._rounded[dtype]

    @cached_property
    def graph_digest(self) -> str:
        """Of all that the graph is made of, its constants included."""
        return graph_digest(self.graph)

    @cached_property
    def inputs_digest(self) -> str:
        """Of the inputs' values: what errors were found depends on them."""
        return digest_of_inputs(self.graph, self.inputs)

    @cached_property
    def inputs_file(self) -> Path:
        """The model's inputs, for `runtime.session.load_arrays`."""
        path = self._folder.path / "inputs.npz"
        save_arrays(path, self.inputs)
        return path


def digest_of_inputs(graph: Graph, inputs: Mapping[str, Array]) -> str:
    """Of their values: the graph's inputs in its order, then state."""
    digest = hashlib.sha256()
    for name in (*graph.inputs, *sorted(inputs.keys() - set(graph.inputs))):
        digest.update(f"{name} ".encode() + np.ascontiguousarray(inputs[name]).tobytes())
    return digest.hexdigest()[:16]
