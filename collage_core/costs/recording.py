"""The values of one run of the whole model on the reference: inputs for measuring, and the answers to compare
with.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from collage_core.errors import CollageError, InputError, WorkerError
from collage_core.formats import Array
from collage_core.ir import load_stored
from collage_core.reference import ReferenceBackend, evaluate
from collage_core.reference.evaluator import A_BIT_OFF, NodeEvaluator
from collage_core.sources import source_hash
from collage_core.target import Target
from collage_core.worker import RemoteError, Worker

__all__ = [
    "Recording",
    "disturbed_values",
    "record",
    "reference_environment",
    "reference_values",
    "reference_worker",
]

_INDEX = "index.json"


class Recording:
    """A folder of recorded values. CollageError if `directory` holds none, or an unfinished one."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        try:
            self._dtypes: dict[str, str] = json.loads((self.directory / _INDEX).read_text())
        except (OSError, ValueError) as error:
            raise CollageError(f"{self.directory} holds no recorded values: {error}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._dtypes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._dtypes)

    def load(self, name: str) -> Array:
        """The value, row-major, memory-mapped and read-only. CollageError if it was not recorded."""
        if name not in self._dtypes:
            raise CollageError(f"value {name!r} was not recorded in {self.directory}")
        return _load(self.directory, name, self._dtypes[name])


def reference_environment() -> dict[str, str]:
    """What a record depends on that tells of the reference's answers: the reference, on any machine."""
    return {
        "onnx": importlib.metadata.version("onnx"),
        "numpy": importlib.metadata.version("numpy"),
        "ir": source_hash("collage_core.ir"),
        "check": source_hash("collage_core.costs"),
        "reference": source_hash("collage_core.reference"),
        "operators": source_hash("collage_core.operators"),
    }


def reference_worker() -> Worker:
    """A process to run graphs in, one after the other, by `record` and `reference_values`."""
    return Worker(ReferenceBackend().environment(Target()))


def record(
    graph_dir: Path, inputs: Mapping[str, Array], values_dir: Path, worker: Worker | None = None
) -> Recording:
    """Run the graph stored in `graph_dir` (`ir.save_stored`) on the reference, and keep every value that is
    not constant, the inputs included, in `values_dir`.

    `inputs`: by name of the graph's inputs and state. worker: a `reference_worker`; one of its own where
    None. InputError for a missing or misshapen input; RemoteError carries what the evaluation says.
    """
    with _given_or_own(worker) as reference:
        reference.call(_record, Path(graph_dir), dict(inputs), Path(values_dir))
    return Recording(values_dir)


def reference_values(
    graph_dir: Path,
    inputs: Mapping[str, Array],
    keep: Collection[str] | None = None,
    worker: Worker | None = None,
    rounded_to: str | None = None,
) -> dict[str, Array]:
    """Values of a stored graph on the reference: those named in `keep`, or the graph's outputs. Nothing else
    is kept. worker and errors as of `record`, rounded_to as of `evaluate`.
    """
    with _given_or_own(worker) as reference:
        values: dict[str, Array] = reference.call(_values, Path(graph_dir), dict(inputs), keep, rounded_to)
    return values


def disturbed_values(
    graph_dir: Path, inputs: Mapping[str, Array], way: str, keep: Collection[str] | None = None
) -> dict[str, Array]:
    """`reference_values`, all rounded that `way` (`rounded_to` of `evaluate`); {} where it cannot: a shape
    that is computed may be another then.
    """
    try:
        return reference_values(graph_dir, inputs, keep, rounded_to=way)
    except RemoteError:
        return {}
    except WorkerError:  # a worker that is gone says nothing of the graph
        if way == A_BIT_OFF:  # which only ever allows more
            return {}
        raise


def _given_or_own(worker: Worker | None) -> AbstractContextManager[Worker]:
    return reference_worker() if worker is None else nullcontext(worker)


def _values(
    graph_dir: Path, inputs: dict[str, Array], keep: Collection[str] | None, rounded_to: str | None
) -> dict[str, Array]:
    return evaluate(load_stored(graph_dir), inputs, keep=keep, rounded_to=rounded_to)


def _record(graph_dir: Path, inputs: dict[str, Array], values_dir: Path) -> None:
    graph = load_stored(graph_dir)
    values_dir.mkdir(parents=True, exist_ok=True)
    (values_dir / _INDEX).unlink(missing_ok=True)
    dtypes: dict[str, str] = {}

    def keep(name: str, value: Array) -> None:
        dtypes[name] = str(value.dtype)
        _save(values_dir, name, value)

    for name in graph.variable_inputs():
        type = graph.type_of(name)
        array = inputs.get(name)
        if array is None or array.shape != type.static_shape or str(array.dtype) != type.dtype:
            given = "is missing" if array is None else f"is {array.dtype}{list(array.shape)}"
            raise InputError(f"input {name!r} must be {type}; it {given}")
        keep(name, array)
    for node in graph.nodes:
        evaluator = NodeEvaluator(graph, node)
        # Operands are read back from their files, so that memory need not hold all values of the model.
        constants = {v: graph.constants[v] for v in evaluator.reads if graph.is_constant(v)}
        computed = {v: _load(values_dir, v, dtypes[v]) for v in evaluator.reads if v not in constants}
        for name, value in evaluator.run({**constants, **computed}).items():
            keep(name, value)
    temporary = values_dir / f"{_INDEX}.{os.getpid()}"
    temporary.write_text(json.dumps(dtypes))
    temporary.replace(values_dir / _INDEX)


def _file(directory: Path, name: str) -> Path:
    # Value names may hold anything, slashes too.
    return directory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.npy"


def _save(directory: Path, name: str, value: Array) -> None:
    # Dtypes that numpy does not bring itself (bfloat16) have no name in its file format.
    np.save(
        _file(directory, name),
        value if value.dtype.isbuiltin == 1 else value.view(f"u{value.dtype.itemsize}"),
    )


def _load(directory: Path, name: str, dtype: str) -> Array:
    array: Array = np.load(_file(directory, name), mmap_mode="r")
    return array if str(array.dtype) == dtype else array.view(np.dtype(dtype))
