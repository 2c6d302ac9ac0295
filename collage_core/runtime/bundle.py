"""Bundles: a placed model in one file.

A bundle is an uncompressed ZIP archive: `manifest.json`, `placement.json`, `model.onnx` (the normalised
graph; any ONNX tool reads it) and `weights.bin` (its external data, read into memory when loaded). Nothing in
a bundle is code: kernels are built at load, or restored from the user's own folder (`runtime.kept`). The
manifest says where the placement was measured.
`singles.json`, which need not be there, has placements of the same graph to compare it with.
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from collage_run import exported
from collage_run.archives import check_size, data_offset
from collage_run.executable import Executable
from collage_run.files import regular, replacing
from collage_run.printable import printable

from collage_core.backend import Kernel, StoredKernel
from collage_core.errors import BackendUnavailableError, BundleError, CollageError, OtherTargetError
from collage_core.formats import CPU, Array, empty, plain
from collage_core.ir import (
    MODEL_FILE,
    WEIGHTS_FILE,
    ExternalData,
    Graph,
    Subgraph,
    from_model,
    write_external,
)
from collage_core.ir.onnx_check import one_line
from collage_core.ir.onnx_tensors import read_into
from collage_core.ir.regions import is_region
from collage_core.placement import Conversion, Group, Placement
from collage_core.plugins import Registry, default_registry
from collage_core.runtime.build import build
from collage_core.runtime.kept import KernelStore
from collage_core.runtime.origin import differences, origin_here
from collage_core.runtime.plan import called
from collage_core.serving import Serving
from collage_core.target import Target

__all__ = [
    "FORMAT_VERSION",
    "Bundle",
    "differences_here",
    "export",
    "holds",
    "load",
    "read",
    "save",
    "serving_of",
]

FORMAT_VERSION = 2
_WITHOUT_REGIONS = 1
_MANIFEST = "manifest.json"
_PLACEMENT = "placement.json"
_SINGLES = "singles.json"
_SERVING = "serving"
_MOST_JSON_BYTES = 64 << 20
"""The placement of a model of 10,000 nodes takes some two MB."""
_MOST_SINGLES = 64
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """A normalised graph, its placement, and the report of the optimisation that made it (JSON values; empty
    if by hand).

    origin: processor and versions that it was measured with (`runtime.origin`); empty for those that are here
    when it is saved. singles: what single backends made of the graph when the placement was confirmed, by
    label (`pipeline.proof.Single`): to compare it with later. serving: how requests that are asked at a time
    are to be served; None where nobody has asked for that.
    """

    graph: Graph
    placement: Placement
    report: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    singles: Mapping[str, Placement] = field(default_factory=dict)
    serving: Serving | None = None


def save(bundle: Bundle, path: str | Path) -> None:
    """Write a bundle; a file of that name is replaced only when the new one is complete. BundleError if it
    cannot be written.
    """
    with _written(bundle, path):
        pass


def export(bundle: Bundle, path: str | Path, registry: Registry | None = None) -> str:
    """Write a bundle that brings its kernels (`collage_run.exported`), built in this process, for this
    processor. Returns the digest that stands for all of it.

    BundleError as from `save`, and for a placement that has kernels of a backend that cannot be stored.
    """
    registry = registry or default_registry()
    executable = build(bundle.graph, bundle.placement, registry, kept=KernelStore())
    environment: dict[str, str] = {}
    for name in bundle.placement.backends():
        environment |= registry.backend(name).environment(bundle.placement.target)
    if others := executable.program.arena_bytes.keys() - {CPU}:
        raise BundleError(f"cannot export {path}: kernels on {', '.join(others)} cannot be stored")
    stored: dict[Kernel, StoredKernel] = {}
    if any(a.dtype.hasobject for a in executable.program.outputs.values() if isinstance(a, np.ndarray)):
        raise BundleError(f"cannot export {path}: it has an output of texts")
    for step, kernel in zip(called(bundle.graph, bundle.placement), executable.kernels, strict=True):
        if kernel not in stored:
            try:
                told = _stored(bundle, registry, step.what, kernel)
            except Exception as error:  # a plugin may raise anything
                raise BundleError(f"cannot export {path}: {step}: {one_line(error)}") from error
            if told is None:
                raise BundleError(f"cannot export {path}: what runs this step cannot be stored: {step}")
            stored[kernel] = told
    with _written(bundle, path) as archive:
        kernels = [stored[kernel] for kernel in executable.kernels]
        threads = bundle.placement.target.threads
        return exported.append(archive, executable.program, kernels, environment, threads)


def _stored(
    bundle: Bundle, registry: Registry, what: Group | Conversion, kernel: Kernel
) -> StoredKernel | None:
    if isinstance(what, Conversion):
        return kernel.stored()
    subgraph, target = Subgraph(bundle.graph, what.nodes), bundle.placement.target
    return registry.backend(what.backend).stored(kernel, subgraph, what.variant, target)


@contextmanager
def _written(bundle: Bundle, path: str | Path) -> Iterator[zipfile.ZipFile]:
    """The archive of it, for more to be written."""
    if Path(path).exists() and not Path(path).is_file():
        raise BundleError(f"cannot write {path}: it is no file")
    try:
        with (
            replacing(path) as partial,
            zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        ):
            with archive.open(WEIGHTS_FILE, "w", force_zip64=True) as weights:
                model = write_external(bundle.graph, weights)
            archive.writestr(MODEL_FILE, model.SerializeToString())
            for name, text in _texts(bundle).items():
                archive.writestr(name, text)
            yield archive
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror or error}") from None


def holds(path: str | Path, bundle: Bundle, *, whatever: Collection[str] = ()) -> bool:
    """Whether a file has what `save` would write, all of it and nothing else: to compare gigabytes takes less
    time than to write them. Not looked at: when it was made, and `whatever` parts of the report.
    """
    try:
        with FileIO(path, opener=regular) as file, zipfile.ZipFile(file) as archive:
            size_bytes = os.fstat(file.fileno()).st_size
            for info in archive.infolist():
                _check_size(info, size_bytes)
            with archive.open(WEIGHTS_FILE) as weights:
                model = write_external(bundle.graph, _Compared(weights))  # type: ignore[arg-type]  # it writes
                if weights.read(1):
                    return False
            texts = _texts(bundle)
            if sorted(archive.namelist()) != sorted([WEIGHTS_FILE, MODEL_FILE, *texts]):  # before any is read
                return False
            if archive.read(MODEL_FILE) != model.SerializeToString():
                return False
            # As values: what is recalled may have its keys in another order.
            held = {name: json.loads(archive.read(name)) for name in texts}
            wanted = {name: json.loads(text) for name, text in texts.items()}
        for manifest in (held[_MANIFEST], wanted[_MANIFEST]):
            manifest["origin"].pop("made_at", None)
            for part in whatever:
                manifest["report"].pop(part, None)
        return bool(held == wanted)
    except Exception:  # a damaged file makes readers of ZIP and JSON raise anything
        return False


def read(path: str | Path, *, check_weights: bool = False) -> Bundle:
    """Read a bundle without building it; BundleError for what is no bundle, a damaged one, or one of a newer
    format.

    check_weights: read the weights too, to find damage in them; they are memory-mapped otherwise, which is
    for looking at what is placed: if somebody cuts the file short, using them ends the process.
    """
    return _read(path, check_weights=check_weights)


def _read(
    path: str | Path, *, check_weights: bool, verify: bool = False, expect: str | None = None
) -> Bundle:
    """verify: whether all of it must be what was exported, and what is expected."""
    path = Path(path)
    try:
        file = FileIO(path, opener=regular)
    except FileNotFoundError as error:
        raise BundleError(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise BundleError(f"{path}: not a bundle ({error.strerror or error})") from None
    try:
        with file, zipfile.ZipFile(file) as archive:
            size_bytes = os.fstat(file.fileno()).st_size
            if verify:
                exported.verify(archive, path, expect)
            for name in (_MANIFEST, _PLACEMENT, MODEL_FILE, WEIGHTS_FILE):
                _check_size(archive.getinfo(name), size_bytes)
            manifest = json.loads(archive.read(_MANIFEST))
            if not isinstance(manifest, dict) or manifest.get("format") != "collage-bundle":
                raise BundleError(f"{path}: not a bundle")
            if manifest["version"] > FORMAT_VERSION:
                raise BundleError(
                    f"{path}: bundle of format {manifest['version']}; this release reads formats up to "
                    f"{FORMAT_VERSION}: update collage-core"
                )
            placement = Placement.from_json(json.loads(archive.read(_PLACEMENT)))
            singles = _singles(archive, size_bytes, placement)
            model = _model(archive.read(MODEL_FILE))
            read_weights = _read_weights if check_weights else _mapped_weights
            weights = read_weights(file, archive)
        graph = from_model(model, external=ExternalData(path.parent, content=weights))
        report, origin = dict(manifest["report"]), dict(manifest.get("origin", {}))
        return Bundle(graph, placement, report, origin, singles, _serving(manifest))
    except BundleError:
        raise
    except CollageError as error:
        raise BundleError(f"{path}: {error}") from None
    except Exception as error:  # a damaged file makes readers of ZIP and JSON raise anything
        raise BundleError(f"{path}: not a bundle, or a damaged one ({one_line(error)})") from None


def load(
    path: str | Path,
    registry: Registry | None = None,
    *,
    allow_code: bool = False,
    expect: str | None = None,
    threads: int | None = None,
) -> Executable:
    """Read a bundle and build its executable in this process.

    allow_code: run the machine code of an exported bundle, which may do anything; without it, and on another
    processor than it was exported on, its kernels are built anew, as those of all other bundles. expect: the
    digest that an exported bundle must have. threads: on so many each kernel runs; None: on as many as the
    placement was made for, with which it was measured.

    BundleError as from `read`, and if a backend of it is not here, or the processor lacks instructions that
    it was made for. Other versions, another processor that has them and another number of threads are
    warned of: the placement is right, but may not be the fastest.
    """
    if threads is not None:
        Target(threads=threads)  # or it is no number of threads
    verify = expect is not None
    if allow_code and (verify or exported.brings_code(path)):
        try:
            return exported.load(path, allow_code=True, expect=expect, threads=threads)
        except (OtherTargetError, BackendUnavailableError) as error:
            warnings.warn(printable(f"{error}: its kernels are built anew"), stacklevel=2)
        verify = True
    registry = registry or default_registry()
    bundle = _read(path, check_weights=True, verify=verify, expect=expect)
    placement, told = bundle.placement, differences_here(bundle, path, registry)
    if threads not in (None, placement.target.threads):
        told.append(
            f"{path}: measured on another number of threads: {placement.target.threads}, not {threads}"
        )
        placement = replace(placement, target=replace(placement.target, threads=threads))
    for difference in told:
        warnings.warn(printable(difference), stacklevel=2)
    return build(bundle.graph, placement, registry, kept=KernelStore())


def differences_here(bundle: Bundle, path: str | Path, registry: Registry) -> list[str]:
    """What is not as it was where the bundle in `path` was made, a line each; BundleError if it cannot run
    here.
    """
    try:
        return [f"{path}: {d}" for d in differences(bundle.origin, bundle.placement, registry)]
    except (AttributeError, TypeError) as error:
        raise BundleError(f"{path}: its manifest is damaged ({error!r})") from None
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None


def serving_of(path: str | Path) -> Serving | None:
    """How requests that are asked at a time are to be served, of a bundle that has been loaded."""
    with FileIO(path, opener=regular) as file, zipfile.ZipFile(file) as archive:
        return _serving(json.loads(archive.read(_MANIFEST)))


def _serving(manifest: Mapping[str, Any]) -> Serving | None:
    told = manifest.get(_SERVING)  # of older ones nobody has asked for it
    return None if told is None else Serving(told["concurrency"], told["sessions"])


def _texts(bundle: Bundle) -> dict[str, bytes]:
    """What is written besides the graph, by the file's name."""
    placements = [bundle.placement, *bundle.singles.values()]
    origin = dict(bundle.origin) or origin_here(placements, default_registry())
    manifest = {
        "format": "collage-bundle",
        "version": FORMAT_VERSION if any(map(is_region, bundle.graph.nodes)) else _WITHOUT_REGIONS,
        "origin": origin,
        "report": dict(bundle.report),
        **({} if bundle.serving is None else {_SERVING: asdict(bundle.serving)}),
    }
    texts = {_PLACEMENT: json.dumps(bundle.placement.to_json()).encode()}
    singles = json.dumps({label: p.to_json() for label, p in bundle.singles.items()}).encode()
    if bundle.singles and len(singles) <= _MOST_JSON_BYTES:  # more would not be read
        texts[_SINGLES] = singles
    return {**texts, _MANIFEST: json.dumps(manifest).encode()}


class _Compared:
    """Takes what would be written, and raises ValueError where a file has something else."""

    def __init__(self, held: IO[bytes]) -> None:
        self._held = held

    def write(self, data: bytes | memoryview) -> int:
        wanted = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        for start in range(0, len(wanted), _CHUNK_BYTES):
            part = wanted[start : start + _CHUNK_BYTES]
            if not np.array_equal(np.frombuffer(self._held.read(len(part)), np.uint8), part):
                raise ValueError("it is another one")
        return len(wanted)


def _model(data: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_from_string(data)
    except Exception as error:  # protobuf's own exception types differ between its implementations
        raise ValueError(f"{MODEL_FILE}: {error}") from None


def _singles(archive: zipfile.ZipFile, size_bytes: int, placement: Placement) -> dict[str, Placement]:
    """Of an older bundle none. ValueError for more than there are backends, or for another target."""
    if _SINGLES not in archive.namelist():
        return {}
    _check_size(archive.getinfo(_SINGLES), size_bytes)
    data = json.loads(archive.read(_SINGLES))
    if not isinstance(data, dict) or len(data) > _MOST_SINGLES:
        raise ValueError(f"{_SINGLES} holds no placements by label, or more than {_MOST_SINGLES}")
    singles = {label: Placement.from_json(p) for label, p in data.items()}
    if any(p.target != placement.target for p in singles.values()):
        raise ValueError(f"{_SINGLES} and {_PLACEMENT} are of different targets")
    return singles


def _check_size(info: zipfile.ZipInfo, size_bytes: int) -> None:
    """As `check_size`, of an entry of an archive of so many bytes."""
    is_json = info.filename in (_MANIFEST, _PLACEMENT, _SINGLES)
    check_size(info, min(size_bytes, _MOST_JSON_BYTES) if is_json else size_bytes)


def _mapped_weights(file: FileIO, archive: zipfile.ZipFile) -> Array:
    """The bytes of the entry of weights, as they lie in the file."""
    info = archive.getinfo(WEIGHTS_FILE)
    if not info.file_size:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r", data_offset(file, info), (info.file_size,))


def _read_weights(file: FileIO, archive: zipfile.ZipFile) -> Array:
    """The same in memory, read once: what has been checked is what runs, whatever becomes of the file.
    BadZipFile unless it is what was written.
    """
    info = archive.getinfo(WEIGHTS_FILE)
    archive.open(info).close()  # checks its local header
    file.seek(data_offset(file, info))
    data = empty([info.file_size], plain("uint8", [info.file_size]))
    sum = 0

    def add(part: memoryview) -> None:
        nonlocal sum
        sum = zlib.crc32(part, sum)

    read_into(file, data, add)
    if sum != info.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {WEIGHTS_FILE!r}")
    return data
