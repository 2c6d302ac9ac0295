"""What a worker holds when it runs a whole model: an executable, or a peer, with inputs in place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from collage_run.executable import Context, Executable

from collage_core.formats import Array
from collage_core.ir import Graph, load_stored
from collage_core.peer import PeerSession
from collage_core.placement import Conversion, Group, Placement
from collage_core.plugins import default_registry
from collage_core.runtime.build import build
from collage_core.runtime.kept import KernelStore
from collage_core.runtime.plan import called
from collage_core.target import Target

__all__ = [
    "ExecutableSession",
    "answers_of",
    "load_arrays",
    "open_peer",
    "open_placement",
    "opened",
    "save_arrays",
]


class ExecutableSession(PeerSession):
    """A placement's executable, run on its own input and output buffers, as peers are on theirs."""

    def __init__(self, graph: Graph, placement: Placement, executable: Executable) -> None:
        self._placement = placement
        self._called = [step.what for step in called(graph, placement)]
        self._context: Context = executable.context()

    def set_inputs(self, inputs: Mapping[str, Array]) -> None:
        for name, array in inputs.items():
            np.copyto(self._context.inputs[name], array)

    def run(self) -> None:
        self._context.execute()

    def parts_ms(self) -> list[float]:
        """Run once, and return what it took, in the order of the placement: groups (0 for views), then
        conversions.
        """
        parts: list[Group | Conversion] = [*self._placement.groups, *self._placement.conversions]
        by_part = dict(zip(self._called, self._context.execute_timed(), strict=True))
        return [by_part.get(part, 0.0) for part in parts]

    def outputs(self) -> dict[str, Array]:
        return {v: a.copy() for v, a in self._context.outputs.items()}


def open_placement(graph_folder: Path, placement: Placement, inputs_file: Path) -> PeerSession:
    """Build a placement of a stored graph and give it its inputs. Runs in a worker."""
    (session,) = opened(graph_folder, placement, 1)
    session.set_inputs(load_arrays(inputs_file))
    return session


def answers_of(
    graph_folder: Path, placement: Placement, inputs_files: Sequence[str | Path]
) -> list[dict[str, Array]]:
    """What a placement of a stored graph answers to each of these inputs. Runs in a worker."""
    (session,) = opened(graph_folder, placement, 1)
    answers = []
    for file in inputs_files:
        session.set_inputs(load_arrays(Path(file)))
        session.run()
        answers.append(session.outputs())
    return answers


def opened(graph_folder: Path, placement: Placement, count: int) -> list[ExecutableSession]:
    """So many sessions of a stored graph, on the same kernels. Runs in a worker."""
    # Each sitting opens it anew, and whoever loads the bundle in the end.
    graph = load_stored(graph_folder)
    executable = build(graph, placement, kept=KernelStore())
    return [ExecutableSession(graph, placement, executable) for _ in range(count)]


def open_peer(name: str, model: Path, target: Target, inputs_file: Path) -> PeerSession:
    """Load a model in a peer and give it its inputs. Runs in a worker."""
    session = default_registry().peer(name).load(model, target)
    session.set_inputs(load_arrays(inputs_file))
    return session


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name (any name) into one .npz file."""
    # The file format knows no name for dtypes that numpy does not bring itself (bfloat16), and numpy's texts
    # lose zeros at their end.
    types = {name: str(array.dtype) for name, array in arrays.items()}
    columns: dict[str, Any] = {f"a{i}": np.asarray(a) for i, a in enumerate(arrays.values())}
    np.savez(path, types=np.array(json.dumps(types)), **columns)


def load_arrays(path: Path) -> dict[str, Array]:
    """Read what `save_arrays` wrote."""
    with np.load(path) as data:
        types = json.loads(str(data["types"]))
        arrays = {name: data[f"a{i}"] for i, name in enumerate(types)}
    return {n: a if str(a.dtype) == types[n] else a.view(np.dtype(types[n])) for n, a in arrays.items()}
