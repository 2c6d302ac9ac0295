"""A model through the whole of `optimize`, and what each of its placements answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from collage_benchmarks.fuzz.describing import as_code
from collage_core import optimize
from collage_core.backend import plain_variant
from collage_core.costs.limits import worker_memory_bytes
from collage_core.errors import WorkerError
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, load_stored, save_stored, subgraph_model
from collage_core.pipeline.effort import THOROUGH
from collage_core.pipeline.optimize import Optimization
from collage_core.placement import Placement
from collage_core.plugins import default_registry
from collage_core.runtime.build import build
from collage_core.runtime.session import load_arrays, save_arrays
from collage_core.target import Target
from collage_core.worker import Worker

__all__ = ["KernelFault", "Placed", "Supervised", "place"]

_FAULTY = ("wrong", "crashed", "failed", "timeout")
_BUILD_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class KernelFault:
    """A kernel that a backend offered and that then failed. values: names of what it reads and computes."""

    backend: str
    status: str
    reason: str
    operators: tuple[str, ...]
    values: tuple[str, ...]
    code: str


@dataclass(frozen=True, slots=True)
class Placed:
    """answers: outputs by the placement's name: "mix", or a single backend's. failures: why one has none.
    passes: what `optimize` told of passes that it left out, and why it did not look at the original.
    """

    answers: Mapping[str, Mapping[str, Array]]
    failures: Mapping[str, str]
    kernels: tuple[KernelFault, ...]
    passes: tuple[str, ...]


class Supervised:
    """A worker that is started anew after it has died."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self._worker = Worker(memory_limit_bytes=worker_memory_bytes())
        return self._worker

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def place(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    supervised: Supervised,
    backends: Sequence[str] | None,
    costs: Path,
) -> Placed:
    """Optimise without comparing placements end to end; run the mix and every backend's own placement. All
    kernels are measured, for each is checked then.

    Raises what `optimize` raises.
    """
    result = optimize(
        model,
        backends=backends,
        inputs=inputs,
        rounds=0,
        costs=costs,
        target=Target("cpu", 1),
        effort=THOROUGH,
    )
    wanted: dict[str, Placement] = {"mix": result.placement}
    wanted.update({s.label: s.placement for s in result.singles if s.placement is not None})
    answers: dict[str, Mapping[str, Array]] = {}
    failures: dict[str, str] = {}
    with _written(result.graph, inputs) as (folder, file):
        for name, placement in wanted.items():
            try:
                answers[name] = supervised.worker.call(
                    _run, folder, placement, file, timeout_s=_BUILD_LIMIT_S
                )
            except WorkerError as error:
                failures[name] = f"{type(error).__name__}: {error}"
    original = result.original
    told = () if original is None else (*original.faults, original.unchecked)
    return Placed(answers, failures, tuple(_faults(result)), tuple(str(t) for t in told if t))


def _run(folder: Path, placement: Placement, inputs_file: Path) -> dict[str, Array]:
    """Runs in a worker."""
    return build(load_stored(folder), placement, default_registry())(load_arrays(inputs_file))


@contextmanager
def _written(graph: Graph, inputs: Mapping[str, Array]) -> Iterator[tuple[Path, Path]]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_stored(graph, folder / "graph")
        save_arrays(folder / "inputs.npz", {n: inputs[n] for n in graph.inputs})
        yield folder / "graph", folder / "inputs.npz"


def _faults(result: Optimization) -> Iterator[KernelFault]:
    seen = set()
    for c in result.candidates.candidates:
        key = c.subgraph.key, str(c.variant), c.backend
        record = result.costs.kernels.get(key)
        if record is None or record.status not in _FAULTY or key in seen:
            continue
        seen.add(key)
        nodes = c.subgraph.nodes
        yield KernelFault(
            c.backend,
            record.status,
            " ".join(str(record.reason).split())[:400],
            tuple(n.op_type for n in nodes),
            tuple(v for n in nodes for v in (*n.outputs, *n.inputs) if v),
            f"# as {c.variant}\n" + _code(c.subgraph),
        )


def _code(group: Subgraph) -> str:
    """The group as a model of its own."""
    formats = plain_variant(group)
    return as_code(subgraph_model(group, formats.inputs, formats.outputs), {})
