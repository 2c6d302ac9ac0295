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
import struct
import warnings
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx

from collage_core.errors import BundleError, CollageError
from collage_core.files import regular
from collage_core.formats import Array, empty, plain
from collage_core.ir import MODEL_FILE, WEIGHTS_FILE, ExternalData, Graph, from_model, write_external
from collage_core.ir.onnx_check import one_line
from collage_core.ir.onnx_tensors import read_into
from collage_core.placement import Placement
from collage_core.plugins import Registry, default_registry
from collage_core.printable import printable
from collage_core.runtime.build import build
from collage_core.runtime.executable import Executable
from collage_core.runtime.files import replacing
from collage_core.runtime.kept import KernelStore
from collage_core.runtime.origin import differences, origin_here

__all__ = ["FORMAT_VERSION", "Bundle", "differences_here", "holds", "load", "read", "save"]

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_PLACEMENT = "placement.json"
_SINGLES = "singles.json"
_MOST_JSON_BYTES = 64 << 20
"""The placement of a model of 10,000 nodes takes some two MB."""
_MOST_SINGLES = 64
_CHUNK_BYTES = 4 << 20
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A normalised graph, its placement, and the report of the optimisation that made it (JSON values; empty
    if by hand).

    origin: processor and versions that it was measured with (`runtime.origin`); empty for those that are here
    when it is saved. singles: what single backends made of the graph when the placement was confirmed, by
    label (`pipeline.proof.Single`): to compare it with later.
    """

    graph: Graph
    placement: Placement
    report: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    singles: Mapping[str, Placement] = field(default_factory=dict)


def save(bundle: Bundle, path: str | Path) -> None:
    """Write a bundle; a file of that name is replaced only when the new one is complete. BundleError if it
    cannot be written.
    """
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
        return Bundle(graph, placement, dict(manifest["report"]), dict(manifest.get("origin", {})), singles)
    except BundleError:
        raise
    except CollageError as error:
        raise BundleError(f"{path}: {error}") from None
    except Exception as error:  # a damaged file makes readers of ZIP and JSON raise anything
        raise BundleError(f"{path}: not a bundle, or a damaged one ({one_line(error)})") from None


def load(path: str | Path, registry: Registry | None = None) -> Executable:
    """Read a bundle and build its executable in this process.

    BundleError as from `read`, and if a backend of it is not here, or the processor lacks instructions that
    it was made for. Other versions, and another processor that has them, are warned of: the placement is
    right, but may not be the fastest.
    """
    registry = registry or default_registry()
    bundle = read(path, check_weights=True)
    for difference in differences_here(bundle, path, registry):
        warnings.warn(printable(difference), stacklevel=2)
    return build(bundle.graph, bundle.placement, registry, kept=KernelStore())


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


def _texts(bundle: Bundle) -> dict[str, bytes]:
    """What is written besides the graph, by the file's name."""
    placements = [bundle.placement, *bundle.singles.values()]
    origin = dict(bundle.origin) or origin_here(placements, default_registry())
    manifest = {
        "format": "collage-bundle",
        "version": FORMAT_VERSION,
        "origin": origin,
        "report": dict(bundle.report),
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


def _check_size(info: zipfile.ZipInfo, most_bytes: int) -> None:
    """BadZipFile for what would unpack to more than it takes, or than the archive."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise zipfile.BadZipFile(f"{info.filename} is compressed")
    if info.filename in (_MANIFEST, _PLACEMENT, _SINGLES):
        most_bytes = min(most_bytes, _MOST_JSON_BYTES)
    if info.file_size != info.compress_size or info.file_size > most_bytes:
        raise zipfile.BadZipFile(f"{info.filename} is said to have {info.file_size} bytes")


def _mapped_weights(file: FileIO, archive: zipfile.ZipFile) -> Array:
    """The bytes of the entry of weights, as they lie in the file."""
    info = archive.getinfo(WEIGHTS_FILE)
    if not info.file_size:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r", _data_offset(file, info), (info.file_size,))


def _read_weights(file: FileIO, archive: zipfile.ZipFile) -> Array:
    """The same in memory, read once: what has been checked is what runs, whatever becomes of the file.
    BadZipFile unless it is what was written.
    """
    info = archive.getinfo(WEIGHTS_FILE)
    archive.open(info).close()  # checks its local header
    file.seek(_data_offset(file, info))
    data = empty([info.file_size], plain("uint8", [info.file_size]))
    sum = 0

    def add(part: memoryview) -> None:
        nonlocal sum
        sum = zlib.crc32(part, sum)

    read_into(file, data, add)
    if sum != info.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {WEIGHTS_FILE!r}")
    return data


def _data_offset(file: FileIO, info: zipfile.ZipInfo) -> int:
    """Where a stored entry's bytes begin: behind its local header, whose name and extra field may be longer
    than the directory's.
    """
    file.seek(info.header_offset)
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))[-2:]
    return info.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
