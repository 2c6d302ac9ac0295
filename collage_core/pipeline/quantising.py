"""A quantised model of one of floats, made by a library's own tool, and how far it is off."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from collage_run.files import replacing

from collage_core.backend import PeerInfo
from collage_core.costs.check import largest_error
from collage_core.costs.recording import reference_values, reference_worker
from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph, Operator, OpKind, from_model, save_stored
from collage_core.ir.passes import normalise
from collage_core.ir.randomness import random_values
from collage_core.ir.stored import MODEL_FILE
from collage_core.ir.verify import require_static
from collage_core.measuring.progress import Progress, Silent
from collage_core.measuring.temporary import TemporaryFolder
from collage_core.pipeline.calibration import samples_of
from collage_core.pipeline.reading import read_model
from collage_core.plugins import Registry, default_registry
from collage_core.worker import RemoteError, Worker

__all__ = ["Quantising", "quantise"]

_LIMIT_S = 3600.0
_QUANTISED = "quantised.onnx"


@dataclass(frozen=True, slots=True)
class Quantising:
    """A quantised model that was written. by: whose tool made it. samples: so many its ranges come from.
    error: max|difference from the floats' answer| / max|that|, the worst output's on one sample that they do
    not come from. quantised, products: how many products have weights of whole numbers, of how many. bytes:
    of the model before and after.
    """

    by: PeerInfo
    samples: int
    error: float
    quantised: int
    products: int
    bytes_before: int
    bytes: int


def quantise(
    model: str | Path | onnx.ModelProto,
    calibration: Mapping[str, Array],
    output: str | Path,
    *,
    excluded: Collection[str] = (),
    quantizer: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    skip_passes: Collection[str] = (),
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> Quantising:
    """Normalise a model and write a quantised one, statically: what values range over is seen on samples.

    calibration: samples of each input along a further axis in front, two at least; the last is held out, to
    tell the error. output: the file to write, replaced as a whole. excluded: names of nodes that stay floats.
    quantizer: whose tool; that of the first that is available where None.

    InputError for a calibration that does not fit, CollageError for a node that is not there, and where no
    tool is; RemoteError with what the tool says.
    """
    registry, progress = registry or default_registry(), progress or Silent()
    tool = registry.quantizer(quantizer)
    graph = read_model(model, shapes, skip_passes, registry, progress).graph
    require_static(graph)
    if missing := sorted(set(excluded) - {n.name for n in graph.nodes}):
        raise CollageError(f"--exclude {missing[0]}: no node of the normalised model has that name")
    samples = samples_of(graph, calibration)
    *seen, last = (samples.chosen_by, *samples.held_out)
    folder = TemporaryFolder()
    try:
        save_stored(graph, folder.path / "given")
        given = folder.path / "given" / MODEL_FILE
        made = folder.path / _QUANTISED
        progress.phase(f"quantising with {tool.name}", len(seen))
        with Worker({}, plugins=registry.modules()) as worker:
            worker.call(_quantise, tool.name, given, seen, tuple(excluded), made, timeout_s=_LIMIT_S)
        written = onnx.load(made)
        quantised = normalise(from_model(written, definitions=registry.definitions))
        save_stored(quantised, folder.path / "quantised")
        progress.phase("comparing it on a sample that was held out")
        error = _error(graph, folder.path / "given", folder.path / "quantised", last)
        _write(written, Path(output))
        before = sum(f.stat().st_size for f in (folder.path / "given").iterdir())
    finally:
        folder.remove()
    whole, products = _products(quantised)
    return Quantising(tool.info(), len(seen), error, whole, products, before, os.path.getsize(output))


def _quantise(
    name: str, model: Path, samples: Sequence[Mapping[str, Array]], excluded: Collection[str], output: Path
) -> None:
    """Runs in a worker."""
    default_registry().quantizer(name).quantise(model, samples, excluded, output)


def _error(graph: Graph, floats: Path, quantised: Path, sample: Mapping[str, Array]) -> float:
    random = random_values(graph)
    with reference_worker() as worker:
        expected = reference_values(floats, sample, worker=worker)
        try:
            found = reference_values(quantised, sample, worker=worker)
        except RemoteError as error:
            raise CollageError(f"the quantised model cannot be run: {error}") from error
    errors = [largest_error(found[v], right) for v, right in expected.items() if v not in random]
    return max(errors, default=0.0)


def _write(model: onnx.ModelProto, output: Path) -> None:
    try:
        data = model.SerializeToString()
    except ValueError as error:
        raise CollageError(f"{output}: over 2 GB, which one file cannot hold") from error
    with replacing(output) as file:
        file.write_bytes(data)


def _products(graph: Graph) -> tuple[int, int]:
    """With weights of whole numbers, and all."""
    found = [n for n in graph.nodes if Operator(graph, n).kind is OpKind.OUT_ELEMWISE_FUSABLE]
    return sum(n.inputs[1] in graph.dequantised for n in found), len(found)
