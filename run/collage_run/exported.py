"""Exported bundles: those that bring their kernels, as machine code and packed constants.

Beside what every bundle has, such an archive has `kernels.bin`, where code and constants lie. `program.json`
says what is called in which order, and the SHA-256 of every other file. So its own digest stands for all of
them. That is no signature: whoever makes a bundle can compute it.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from collage_run.archives import check_size, data_offset
from collage_run.devices import CpuDevice
from collage_run.environment import tell_libraries
from collage_run.errors import (
    BackendUnavailableError,
    BundleError,
    CollageError,
    OtherTargetError,
)
from collage_run.executable import Executable
from collage_run.files import open_regular
from collage_run.formats import CPU, Array, Format, plain, row_major_bytes, view
from collage_run.kernel import Kernel, StoredKernel
from collage_run.mapped import contents
from collage_run.open_outputs import OpenOutput
from collage_run.processor import cpuinfo, runs_code_of
from collage_run.program import Call, Place, Program
from collage_run.restoring import restore
from collage_run.types import Dim, TensorType

__all__ = ["PROGRAM_FILE", "append", "brings_code", "load", "verify"]

PROGRAM_FILE = "program.json"
_KERNELS_FILE = "kernels.bin"
_VERSION = 3
_WITHOUT_OPEN_OUTPUTS = 2
_ALIGNMENT = 64
_MOST_PROGRAM_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
_MOST_NAMED = 5


def append(
    archive: zipfile.ZipFile,
    program: Program,
    stored: Sequence[StoredKernel],
    environment: Mapping[str, str],
    threads: int,
) -> str:
    """Write a program and the kernels that it calls, one for each call (the same one, where calls share it),
    behind what the archive has already. environment: variables that libraries must find when they are loaded.
    threads: on so many each kernel runs. Returns the digest that stands for all of it.
    """
    places: dict[Place, int] = {}
    kernels: dict[int, int] = {}

    def number(place: Place) -> int:
        return places.setdefault(place, len(places))

    with archive.open(_KERNELS_FILE, "w", force_zip64=True) as file:
        blob = _Blob(file, archive.fp.tell() if archive.fp else 0)
        described: list[dict[str, Any]] = []
        for kernel in stored:
            if id(kernel) not in kernels:
                kernels[id(kernel)] = len(kernels)
                code, arrays = blob.put(kernel.code), [blob.put_array(a) for a in kernel.arrays]
                facts = {"kind": kernel.kind, "facts": dict(kernel.facts)}
                described.append({**facts, "code": code, "arrays": arrays})
        outputs = {
            name: {"place": number(held)} if isinstance(held, Place) else {"array": blob.put_array(held)}
            for name, held in program.outputs.items()
        }
    calls = [
        {
            "name": call.name,
            "kernel": kernels[id(kernel)],
            "reads": [*map(number, call.reads)],
            "writes": [*map(number, call.writes)],
            "workspace": number(call.workspace),
        }
        for call, kernel in zip(program.calls, stored, strict=True)
    ]
    inputs = {name: number(place) for name, place in program.inputs.items()}
    constants = [a for kernel in stored for a in kernel.arrays]
    constants += [held for held in program.outputs.values() if not isinstance(held, Place)]
    dtypes = {place.format.dtype for place in places} | {str(a.dtype) for a in constants}
    told = {
        "version": _VERSION if program.open_outputs else _WITHOUT_OPEN_OUTPUTS,
        "processor": runs_code_of(),
        "model_name": _model_name(),
        "environment": dict(environment),
        "threads": threads,
        "dtypes": sorted(dtypes),
        "arena_bytes": program.arena_bytes[CPU],
        "places": [_place_to_json(place) for place in places],
        "inputs": inputs,
        "outputs": outputs,
        "open_outputs": {name: [o.sizes, o.type.shape] for name, o in program.open_outputs.items()},
        "calls": calls,
        "kernels": described,
        "files": {name: _digest(_chunks(archive, name)) for name in archive.namelist()},
    }
    text = json.dumps(told).encode()
    archive.writestr(PROGRAM_FILE, text)
    return _digest([text])


def brings_code(path: str | Path) -> bool:
    """Whether it is a bundle that brings its kernels."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return PROGRAM_FILE in archive.namelist()
    except Exception:  # a damaged file makes readers of ZIP raise anything
        return False


def load(
    path: str | Path, *, allow_code: bool = False, expect: str | None = None, threads: int | None = None
) -> Executable:
    """The executable of an exported bundle. Its constants are mapped: processes that run it share them, and
    who cuts the file short ends them.

    allow_code: its kernels are machine code, which may do anything; without this, nothing of them is read.
    expect: the digest that `collage export` has told ("sha256:..."). threads: on so many it is to run; None:
    on as many as it was made for. BundleError for what is no exported bundle, for a damaged one, and for
    another one than is expected; OtherTargetError where its code is for another processor, or number of
    threads; BackendUnavailableError where a library that it needs is missing, or another version.
    """
    if not allow_code:
        raise BundleError(
            f"{path}: it brings machine code, which may do anything: where you trust who made it, allow it "
            "(allow_code=True, --allow-code)"
        )
    if threads is not None and (type(threads) is not int or threads < 1):
        raise BundleError(f"{path}: threads is a whole number above 0, not {threads!r}")
    with _Opened(path, expect) as opened:
        if opened.told["processor"] != runs_code_of():
            raise OtherTargetError(f"{path}: {_difference(opened.told)}")
        made_for = opened.told.get("threads")  # version 1 does not say
        if threads not in (None, made_for):
            told = f"{made_for or 'unknown'}, not {threads}"
            raise OtherTargetError(f"{path}: its code is for another number of threads: {told}")
        opened.require_types()
        blob = opened.kernels()
        stored = [_kernel_from_json(kernel, blob) for kernel in opened.told["kernels"]]
        program = _program_from_json(opened.told, blob)
        tell_libraries(opened.told["environment"], str(path))
        made: dict[int, Kernel] = {}
        numbers = [call["kernel"] for call in opened.told["calls"]]
        for number, call in zip(numbers, program.calls, strict=True):
            if number not in made:
                made[number] = _restored(path, call.name, stored[number])
        kernels = [made[number] for number in numbers]
        _require_room(program.calls, kernels)
        return Executable(program, kernels, {CPU: CpuDevice()})


def verify(
    archive: zipfile.ZipFile, path: str | Path, expect: str | None, only: Sequence[str] | None = None
) -> None:
    """BundleError unless all of an exported bundle, or these files, is what was written, and expected."""
    told = _program(archive, path, expect)
    for name in told["files"] if only is None else only:
        _check(path, told, name, _chunks(archive, name))


class _Opened:
    """An exported bundle, while it is read: whatever is wrong with it becomes a BundleError."""

    def __init__(self, path: str | Path, expect: str | None) -> None:
        self._path = path
        self._expect = expect

    def __enter__(self) -> _Opened:
        try:
            self._file = open_regular(self._path)
        except OSError as error:
            raise BundleError(f"{self._path}: {error.strerror or error}") from None
        try:
            self._archive = zipfile.ZipFile(self._file)
            self.told = _program(self._archive, self._path, self._expect)
            if self.told["version"] > _VERSION:
                raise BundleError(
                    f"{self._path}: exported in format {self.told['version']}; this release reads formats up "
                    f"to {_VERSION}: update collage-run"
                )
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if error is None or isinstance(error, CollageError) or not isinstance(error, Exception):
            return
        # What is in a damaged file makes readers of ZIP and JSON raise anything.
        said = _said(error)
        raise BundleError(f"{self._path}: not an exported bundle, or a damaged one ({said})") from None

    def require_types(self) -> None:
        """BundleError for one that NumPy knows only with a package that is not here."""
        for dtype in self.told["dtypes"]:
            try:
                np.dtype(dtype)
            except TypeError:
                try:
                    import ml_dtypes  # noqa: F401  # it tells NumPy
                except ImportError:
                    said = f"{self._path}: it has values of type {dtype}: pip install ml_dtypes"
                    raise BundleError(said) from None

    def kernels(self) -> Array:
        """The bytes of code and constants, mapped, which are what was written."""
        info = self._archive.getinfo(_KERNELS_FILE)
        whole = contents(self._file)
        start = data_offset(self._file, info)
        blob = whole[start : start + info.file_size]
        _check(self._path, self.told, _KERNELS_FILE, [blob.data])
        return blob


def _program(archive: zipfile.ZipFile, path: str | Path, expect: str | None) -> Mapping[str, Any]:
    """What `program.json` says, of an archive that has the files of which it tells, and no others."""
    names = archive.namelist()
    if PROGRAM_FILE not in names:
        raise BundleError(f"{path}: it brings no kernels; `collage export` writes them into a bundle")
    for info in archive.infolist():
        check_size(info, _MOST_PROGRAM_BYTES if info.filename == PROGRAM_FILE else info.compress_size)
    text = archive.read(PROGRAM_FILE)
    digest = _digest([text])
    if expect is not None and expect.lower() not in (digest, digest.removeprefix(_SHA256)):
        raise BundleError(f"{path}: its digest is {digest}, not {expect}")
    told: Mapping[str, Any] = json.loads(text)
    if sorted(names) != sorted([*told["files"], PROGRAM_FILE]):
        raise BundleError(f"{path}: it has other files than it had when it was written")
    return told


def _check(
    path: str | Path, told: Mapping[str, Any], name: str, content: Iterator[bytes] | Sequence[memoryview]
) -> None:
    if _digest(content) != told["files"][name]:
        raise BundleError(f"{path}: {name} is not what was written")


class _Blob:
    """A file that is being written from `start` on in another one; arrays are aligned there."""

    def __init__(self, file: IO[bytes], start: int) -> None:
        self._file = file
        self._start = start
        self._at = start

    def put(self, data: bytes | memoryview) -> list[int]:
        """Where it lies in this file, and how many bytes it has."""
        offset = self._at - self._start
        self._file.write(data)
        self._at += len(data)
        return [offset, len(data)]

    def put_array(self, array: Array) -> dict[str, Any]:
        self.put(bytes(-self._at % _ALIGNMENT))
        data = row_major_bytes(array)
        return {"dtype": str(array.dtype), "shape": list(array.shape), "offset": self.put(data)[0]}


def _restored(path: str | Path, name: str, stored: StoredKernel) -> Kernel:
    """name: of the step that calls it first."""
    try:
        return restore(stored)
    except BackendUnavailableError as error:
        raise BackendUnavailableError(f"{path}: {name}: {error}") from error
    except Exception as error:  # whatever a library raises
        raise BundleError(f"{path}: {name}: its kernel cannot be made here ({_said(error)})") from error


def _require_room(calls: Sequence[Call], kernels: Sequence[Kernel]) -> None:
    """ValueError where a kernel wants more scratch memory than it has, or would write over what it reads."""
    for call, kernel in zip(calls, kernels, strict=True):
        if kernel.workspace_bytes > call.workspace.shape[0]:
            raise ValueError(f"{call.name}: it wants {kernel.workspace_bytes} bytes of scratch memory")
        lying = {
            place.offset: i for i, place in enumerate(call.reads) if place.format.size_bytes(place.shape)
        }
        for output, place in enumerate(call.writes):
            source = lying.get(place.offset) if place.format.size_bytes(place.shape) else None
            if source is not None and kernel.may_alias.get(output) != source:
                raise ValueError(f"{call.name}: it would write over its input")


def _kernel_from_json(told: Mapping[str, Any], blob: Array) -> StoredKernel:
    offset, size_bytes = told["code"]
    code = _part(blob, offset, size_bytes).tobytes()
    return StoredKernel(told["kind"], told["facts"], code, tuple(_array(a, blob) for a in told["arrays"]))


def _program_from_json(told: Mapping[str, Any], blob: Array) -> Program:
    arena_bytes = told["arena_bytes"]
    places = [_place_from_json(place, arena_bytes) for place in told["places"]]
    calls = [
        Call(
            call["name"],
            tuple(places[i] for i in call["reads"]),
            tuple(places[i] for i in call["writes"]),
            places[call["workspace"]],
        )
        for call in told["calls"]
    ]
    inputs = {name: places[i] for name, i in told["inputs"].items()}
    outputs = {
        name: places[held["place"]] if "place" in held else _array(held["array"], blob)
        for name, held in told["outputs"].items()
    }
    opened = {
        name: OpenOutput(sizes, _open_type(outputs, name, sizes, shape))
        for name, (sizes, shape) in told.get("open_outputs", {}).items()
    }
    return Program(tuple(calls), inputs, outputs, {CPU: arena_bytes}, opened)


def _open_type(
    outputs: Mapping[str, Place | Array], name: str, sizes: str, shape: Sequence[Dim]
) -> TensorType:
    whole, counts = outputs[name], outputs[sizes]
    if not isinstance(whole, Place) or not isinstance(counts, Place):
        raise TypeError(f"the shape of {name!r} is open, and nothing computes it")
    if counts.format.dtype != "int64" or not counts.shape == (len(whole.shape),) == (len(shape),):
        raise ValueError(f"the sizes of {name!r} are no shape of it")
    return TensorType(whole.format.dtype, tuple(shape))


def _place_to_json(place: Place) -> list[Any]:
    return [place.offset, place.shape, place.format.dtype, place.format.layout]


def _place_from_json(told: Sequence[Any], arena_bytes: int) -> Place:
    offset, shape, dtype, layout = told
    if any(type(number) is not int for number in (offset, *shape, *layout)):
        raise TypeError(f"a value lies nowhere: {told}")
    place = Place(offset, tuple(shape), Format.of(dtype, shape, layout))
    if offset < 0 or min(shape, default=0) < 0 or offset + place.format.size_bytes(shape) > arena_bytes:
        raise ValueError(f"a value lies beside its arena: {told}")
    return place


def _array(told: Mapping[str, Any], blob: Array) -> Array:
    """A part of it, seen as an array."""
    format = plain(told["dtype"], told["shape"])
    if (blob.ctypes.data + told["offset"]) % _ALIGNMENT:
        raise ValueError("its files do not lie where they were written")
    return view(_part(blob, told["offset"], format.size_bytes(told["shape"])), told["shape"], format)


def _part(blob: Array, offset: int, size_bytes: int) -> Array:
    if offset < 0 or size_bytes < 0 or offset + size_bytes > len(blob):
        raise ValueError(f"it has {len(blob)} bytes of kernels, and refers to others")
    return blob[offset : offset + size_bytes]


def _difference(told: Mapping[str, Any]) -> str:
    made_for, here = told["model_name"], _model_name()
    if made_for != here:
        return f"its code is for {made_for}; this is {here}"
    others = set(told["processor"].split()) ^ set(runs_code_of().split())
    return f"its code is for another {here}: they differ in {', '.join(sorted(others)[:_MOST_NAMED])}"


def _model_name() -> str:
    return cpuinfo().get("model name") or runs_code_of().split(",")[0]


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_SHA256 = "sha256:"


def _digest(parts: Iterator[bytes] | Sequence[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return _SHA256 + digest.hexdigest()


def _chunks(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    with archive.open(name) as file:
        while part := file.read(_CHUNK_BYTES):
            yield part
