"""Bundles: a placed model in one file.

A bundle is an uncompressed ZIP archive: `manifest.json`, `placement.json`, `model.onnx` (the normalised
graph; any ONNX tool reads it) and `weights.bin` (its external data, read into memory when loaded). Nothing in
a bundle is code: kernels are built at load, or restored from the user's own folder (`runtime.kept`). The
manifest says where the placement was measured.
`singles.json`, which need not be there, has placements of the same graph to compare it with.
A bundle of several profiles has `placement.1.json`, `model.1.onnx` and so on for each further one; equal
weights of all of them lie in `weights.bin` once (docs/adr/0047).
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from collage_run import exported
from collage_run.archives import check_size
from collage_run.executable import Executable
from collage_run.files import open_regular, replacing

from collage_core.backend import Kernel, StoredKernel, process_environment
from collage_core.errors import BundleError, CollageError
from collage_core.formats import CPU
from collage_core.ir import (
    MODEL_FILE,
    WEIGHTS_FILE,
    ExternalData,
    Graph,
    Subgraph,
    WrittenWeights,
    from_model,
    write_external,
)
from collage_core.ir.onnx_check import one_line
from collage_core.ir.regions import is_region
from collage_core.ir.row_axes import RowAxes
from collage_core.placement import Conversion, Group, Placement
from collage_core.plugins import Registry, default_registry
from collage_core.runtime.build import build
from collage_core.runtime.kept import KernelStore
from collage_core.runtime.origin import origin_here
from collage_core.runtime.plan import called
from collage_core.runtime.profiles import Shapes, choose, require_apart, require_one_model, shapes_of
from collage_core.runtime.weights import Compared, mapped_weights, read_weights
from collage_core.serving import Serving

__all__ = [
    "FORMAT_VERSION",
    "Bundle",
    "chosen",
    "export",
    "holds",
    "read",
    "read_all",
    "read_profiles",
    "save",
    "told_in",
]

FORMAT_VERSION = 2
_FIRST_VERSION = 1
"""What a bundle of one profile without regions says, which earlier releases read as well."""
_MANIFEST = "manifest.json"
_PLACEMENT = "placement.json"
_SINGLES = "singles.json"
_SERVING = "serving"
_MOST_JSON_BYTES = 64 << 20
"""The placement of a model of 10,000 nodes takes some two MB."""
_MOST_SINGLES = 64


@dataclass(frozen=True, slots=True)
class Bundle:
    """A normalised graph, its placement, and the report of the optimisation that made it (JSON values; empty
    if by hand).

    origin: processor and versions that it was measured with (`runtime.origin`); empty for those that are here
    when it is saved. singles: what single backends made of the graph when the placement was confirmed, by
    label (`pipeline.proof.Single`): to compare it with later. rows: of inputs that may be padded to this
    shape, None where none may. serving: how requests that are asked at a time are to be served; None where
    nobody has asked for that.

    A file may hold several: profiles, which are the same model at several shapes of its inputs.
    """

    graph: Graph
    placement: Placement
    report: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    singles: Mapping[str, Placement] = field(default_factory=dict)
    rows: RowAxes | None = None
    serving: Serving | None = None

    @property
    def shapes(self) -> Shapes:
        """Of its inputs, by which profiles are told apart."""
        return shapes_of(self.graph)


def save(bundle: Bundle | Sequence[Bundle], path: str | Path) -> None:
    """Write a bundle, or several profiles of one model; a file of that name is replaced only when the new one
    is complete. BundleError if it cannot be written; CollageError for profiles of the same shapes, or too
    many.
    """
    with _written(_profiles(bundle), path):
        pass


def _profiles(bundle: Bundle | Sequence[Bundle]) -> Sequence[Bundle]:
    if isinstance(bundle, Bundle):
        return [bundle]
    require_apart([profile.shapes for profile in bundle])
    require_one_model([(profile.graph, profile.placement.target) for profile in bundle])
    return bundle


def export(bundle: Bundle, path: str | Path, registry: Registry | None = None) -> str:
    """Write a bundle that brings its kernels (`collage_run.exported`), built in this process, for this
    processor. Returns the digest that stands for all of it.

    BundleError as from `save`, and for a placement that has kernels of a backend that cannot be stored.
    """
    registry = registry or default_registry()
    executable = build(bundle.graph, bundle.placement, registry, kept=KernelStore())
    backends = [registry.backend(name) for name in bundle.placement.backends()]
    environment = process_environment(backends, bundle.placement.target)
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
    with _written([bundle], path) as archive:
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
def _written(profiles: Sequence[Bundle], path: str | Path) -> Iterator[zipfile.ZipFile]:
    """The archive of it, for more to be written."""
    if os.path.exists(path) and not Path(path).is_file():
        raise BundleError(f"cannot write {path}: it is no file")
    try:
        with replacing(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
            with archive.open(WEIGHTS_FILE, "w", force_zip64=True) as weights:
                models = _models(profiles, weights)
            for number, model in enumerate(models):
                archive.writestr(_numbered(MODEL_FILE, number), model.SerializeToString())
            for name, text in _texts(profiles).items():
                archive.writestr(name, text)
            yield archive
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror or error}") from None


def _models(profiles: Sequence[Bundle], weights: IO[bytes]) -> list[onnx.ModelProto]:
    """One each; what several have in common is written once."""
    written = WrittenWeights() if len(profiles) > 1 else None
    return [write_external(profile.graph, weights, written) for profile in profiles]


def _numbered(name: str, number: int) -> str:
    """What the file of a profile is called; the first one's as that of a bundle of one."""
    stem, dot, suffix = name.partition(".")
    return f"{stem}.{number}{dot}{suffix}" if number else name


def holds(path: str | Path, bundle: Bundle | Sequence[Bundle], *, whatever: Collection[str] = ()) -> bool:
    """Whether a file has what `save` would write, all of it and nothing else: to compare gigabytes takes less
    time than to write them. Not looked at: when it was made, and `whatever` parts of the report.
    """
    profiles = _profiles(bundle)
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            size_bytes = os.fstat(file.fileno()).st_size
            for info in archive.infolist():
                _check_size(info, size_bytes)
            with archive.open(WEIGHTS_FILE) as weights:
                models = _models(profiles, Compared(weights))  # type: ignore[arg-type]  # it writes
                if weights.read(1):
                    return False
            texts = _texts(profiles)
            named = {_numbered(MODEL_FILE, number): model for number, model in enumerate(models)}
            if sorted(archive.namelist()) != sorted([WEIGHTS_FILE, *named, *texts]):  # before any is read
                return False
            if any(archive.read(name) != model.SerializeToString() for name, model in named.items()):
                return False
            # As values: what is recalled may have its keys in another order.
            held = {name: json.loads(archive.read(name)) for name in texts}
            wanted = {name: json.loads(text) for name, text in texts.items()}
        for manifest in (held[_MANIFEST], wanted[_MANIFEST]):
            manifest["origin"].pop("made_at", None)
            for told in _told(manifest):
                for part in whatever:
                    told["report"].pop(part, None)
        return bool(held == wanted)
    except Exception:  # a damaged file makes readers of ZIP and JSON raise anything
        return False


def read(path: str | Path, *, check_weights: bool = False, shapes: Shapes | None = None) -> Bundle:
    """Read a bundle without building it; BundleError for what is no bundle, a damaged one, or one of a newer
    format. shapes: of inputs, which say which of several profiles is meant; BundleError if they do not.

    check_weights: read the weights too, to find damage in them, and in all of an exported bundle. Otherwise
    they are memory-mapped, to look at what is placed: if somebody cuts the file short, using them ends the
    process.
    """
    return chosen(read_profiles(path, check_weights=check_weights), path, shapes)


def read_profiles(path: str | Path, *, check_weights: bool = False) -> tuple[Bundle, ...]:
    """As `read`, all that a bundle has, in the order in which they were saved. They share their weights."""
    return read_all(path, check_weights=check_weights)


def told_in(
    path: str | Path, executable: Executable, expect: str | None
) -> tuple[RowAxes | None, Serving | None, int]:
    """Rows and serving of an exported bundle that was loaded (see `Bundle`), and for how many threads it was
    made. BundleError for what does not fit it, and for what is not what was exported, and expected.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            exported.verify(archive, path, expect, (_MANIFEST, _PLACEMENT))
            manifest = json.loads(archive.read(_MANIFEST))
            threads = Placement.from_json(json.loads(archive.read(_PLACEMENT))).target.threads
        types = {**executable.inputs, **executable.buffers}
        shapes = {name: type.static_shape for name, type in types.items()}
        told = manifest.get("rows")
        return None if told is None else RowAxes.from_json(told, shapes), _serving(manifest), threads
    except BundleError:
        raise
    except Exception as error:  # a damaged file makes readers of ZIP and JSON raise anything
        raise BundleError(f"{path}: its manifest is damaged ({one_line(error)})") from None


def chosen(profiles: Sequence[Bundle], path: str | Path, shapes: Shapes | None) -> Bundle:
    """That of the profiles in a file which the shapes say. BundleError if they do not say one."""
    if len(profiles) == 1 and not shapes:
        return profiles[0]
    return profiles[choose([profile.shapes for profile in profiles], shapes, path)]


def read_all(path: str | Path, *, check_weights: bool, expect: str | None = None) -> tuple[Bundle, ...]:
    """As `read_profiles`. expect: the digest that an exported bundle must have; another bundle is none."""
    path = Path(path)
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise BundleError(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise BundleError(f"{path}: not a bundle ({error.strerror or error})") from None
    try:
        with file, zipfile.ZipFile(file) as archive:
            size_bytes = os.fstat(file.fileno()).st_size
            if expect is not None or (check_weights and exported.PROGRAM_FILE in archive.namelist()):
                exported.verify(archive, path, expect)
            for name in (_MANIFEST, WEIGHTS_FILE):
                _check_size(archive.getinfo(name), size_bytes)
            manifest = json.loads(archive.read(_MANIFEST))
            if not isinstance(manifest, dict) or manifest.get("format") != "collage-bundle":
                raise BundleError(f"{path}: not a bundle")
            if manifest["version"] > FORMAT_VERSION:
                raise BundleError(
                    f"{path}: bundle of format {manifest['version']}; this release reads formats up to "
                    f"{FORMAT_VERSION}: update collage-core"
                )
            of_weights = read_weights if check_weights else mapped_weights
            external = ExternalData(path.parent, content=of_weights(file, archive))
            profiles = tuple(
                _profile(archive, size_bytes, number, told, dict(manifest.get("origin", {})), external)
                for number, told in enumerate(_told(manifest))
            )
        if len(profiles) > 1:
            _profiles(profiles)
        return profiles
    except BundleError:
        raise
    except CollageError as error:
        raise BundleError(f"{path}: {error}") from None
    except Exception as error:  # a damaged file makes readers of ZIP and JSON raise anything
        raise BundleError(f"{path}: not a bundle, or a damaged one ({one_line(error)})") from None


def _serving(told: Mapping[str, Any]) -> Serving | None:
    serving = told.get(_SERVING)  # of older ones nobody has asked for it
    return None if serving is None else Serving(serving["concurrency"], serving["sessions"])


def _texts(profiles: Sequence[Bundle]) -> dict[str, bytes]:
    """What is written besides the graphs, by the file's name."""
    placements = [p for profile in profiles for p in (profile.placement, *profile.singles.values())]
    first, *others = [_of_profile(profile) for profile in profiles]
    manifest = {
        "format": "collage-bundle",
        "version": FORMAT_VERSION if others or _has_regions(profiles) else _FIRST_VERSION,
        "origin": dict(profiles[0].origin) or origin_here(placements, default_registry()),
        **first,
        **({"further": others} if others else {}),
    }
    texts = {}
    for number, profile in enumerate(profiles):
        texts[_numbered(_PLACEMENT, number)] = json.dumps(profile.placement.to_json()).encode()
        singles = json.dumps({label: p.to_json() for label, p in profile.singles.items()}).encode()
        if profile.singles and len(singles) <= _MOST_JSON_BYTES:  # more would not be read
            texts[_numbered(_SINGLES, number)] = singles
    return {**texts, _MANIFEST: json.dumps(manifest).encode()}


def _has_regions(profiles: Sequence[Bundle]) -> bool:
    return any(is_region(n) for profile in profiles for n in profile.graph.nodes)


def _of_profile(profile: Bundle) -> dict[str, Any]:
    """What the manifest says of a profile."""
    rows = {} if profile.rows is None else {"rows": profile.rows.to_json()}
    serving = {} if profile.serving is None else {_SERVING: asdict(profile.serving)}
    return {"report": dict(profile.report), **rows, **serving}


def _told(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """What a manifest says of each profile."""
    return [manifest, *manifest.get("further", [])]


def _profile(
    archive: zipfile.ZipFile,
    size_bytes: int,
    number: int,
    told: Mapping[str, Any],
    origin: Mapping[str, Any],
    external: ExternalData,
) -> Bundle:
    for name in (_PLACEMENT, MODEL_FILE):
        _check_size(archive.getinfo(_numbered(name, number)), size_bytes)
    placement = Placement.from_json(json.loads(archive.read(_numbered(_PLACEMENT, number))))
    singles = _singles(archive, size_bytes, _numbered(_SINGLES, number), placement)
    graph = from_model(_model(archive.read(_numbered(MODEL_FILE, number))), external=external)
    shapes = {v: graph.shape_of(v) for v in (*graph.inputs, *graph.outputs)} if told.get("rows") else {}
    rows = RowAxes.from_json(told["rows"], shapes) if shapes else None
    return Bundle(graph, placement, dict(told["report"]), origin, singles, rows, _serving(told))


def _model(data: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_from_string(data)
    except Exception as error:  # protobuf's own exception types differ between its implementations
        raise ValueError(f"{MODEL_FILE}: {error}") from None


def _singles(
    archive: zipfile.ZipFile, size_bytes: int, name: str, placement: Placement
) -> dict[str, Placement]:
    """Of an older bundle none. ValueError for more than there are backends, or for another target."""
    if name not in archive.namelist():
        return {}
    _check_size(archive.getinfo(name), size_bytes)
    data = json.loads(archive.read(name))
    if not isinstance(data, dict) or len(data) > _MOST_SINGLES:
        raise ValueError(f"{name} holds no placements by label, or more than {_MOST_SINGLES}")
    singles = {label: Placement.from_json(p) for label, p in data.items()}
    if any(p.target != placement.target for p in singles.values()):
        raise ValueError(f"{name} and {_PLACEMENT} are of different targets")
    return singles


def _check_size(info: zipfile.ZipInfo, size_bytes: int) -> None:
    """As `check_size`, of an entry of an archive of so many bytes."""
    is_json = info.filename.endswith(".json")
    check_size(info, min(size_bytes, _MOST_JSON_BYTES) if is_json else size_bytes)
