"""Bundles: a placed model in one file.

A bundle is an uncompressed ZIP archive: `manifest.json`, `placement.json`, `model.onnx` (the normalised
graph; any ONNX tool reads it) and `weights.bin` (its external data, memory-mapped from inside the archive
when loaded). Kernels are built anew at load: nothing in a bundle is code.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from collage_core.errors import BundleError
from collage_core.ir import MODEL_FILE, WEIGHTS_FILE, ExternalData, Graph, from_model, write_external
from collage_core.placement import Placement
from collage_core.plugins import Registry
from collage_core.runtime.build import build
from collage_core.runtime.executable import Executable

__all__ = ["FORMAT_VERSION", "Bundle", "load", "read", "save"]

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_PLACEMENT = "placement.json"
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A normalised graph, its placement, and the report of the optimisation that made it (JSON values; empty
    if by hand).
    """

    graph: Graph
    placement: Placement
    report: Mapping[str, Any] = field(default_factory=dict)


def save(bundle: Bundle, path: str | Path) -> None:
    """Write a bundle; a file of that name is replaced only when the new one is complete."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    manifest = {"format": "collage-bundle", "version": FORMAT_VERSION, "report": dict(bundle.report)}
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            with archive.open(WEIGHTS_FILE, "w", force_zip64=True) as weights:
                model = write_external(bundle.graph, weights)
            archive.writestr(MODEL_FILE, model.SerializeToString())
            archive.writestr(_PLACEMENT, json.dumps(bundle.placement.to_json()))
            archive.writestr(_MANIFEST, json.dumps(manifest))
        partial.replace(path)
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)


def read(path: str | Path) -> Bundle:
    """Read a bundle without building it; BundleError for what is no bundle, or one of a newer format."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            if not isinstance(manifest, dict) or manifest.get("format") != "collage-bundle":
                raise BundleError(f"{path}: not a bundle")
            if manifest["version"] > FORMAT_VERSION:
                raise BundleError(
                    f"{path}: bundle of format {manifest['version']}; this release reads formats up to "
                    f"{FORMAT_VERSION}: update collage-core"
                )
            placement = Placement.from_json(json.loads(archive.read(_PLACEMENT)))
            model = _model(archive.read(MODEL_FILE))
            start = _data_offset(path, archive.getinfo(WEIGHTS_FILE))
    except FileNotFoundError:
        raise BundleError(f"{path}: no such file") from None
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise BundleError(f"{path}: not a bundle ({error})") from None
    graph = from_model(model, external=ExternalData(path.parent, archive=path, offset=start))
    return Bundle(graph, placement, manifest["report"])


def load(path: str | Path, registry: Registry | None = None) -> Executable:
    """Read a bundle and build its executable in this process."""
    bundle = read(path)
    return build(bundle.graph, bundle.placement, registry)


def _model(data: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_from_string(data)
    except Exception as error:  # protobuf's own exception types differ between its implementations
        raise ValueError(f"{MODEL_FILE}: {error}") from None


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a stored entry's bytes begin: behind its local header, whose name and extra field may be longer
    than the directory's.
    """
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    name_bytes, extra_bytes = header[-2:]
    return info.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
