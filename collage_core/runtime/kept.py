"""Built kernels kept on disk, so that another process that loads the same model builds none of them.

A file holds what `Kernel.stored` tells, under a digest of all of it. Constants are mapped: processes share
their pages. The file's name covers all that a kernel is made of: the group and the content of its constants,
variant, target, the code of backend and core, and the processor.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from collage_run.mapped import contents
from collage_run.processor import runs_code_of
from collage_run.restoring import restore

from collage_core.backend import Backend, Kernel, StoredKernel, Variant
from collage_core.folders import user_folder
from collage_core.formats import CPU, Array, Format, device_of, plain, row_major_bytes, view
from collage_core.ir import Graph, Subgraph, TensorType
from collage_core.private_files import PrivateFiles
from collage_core.sources import source_hash
from collage_core.target import Target

__all__ = ["KernelStore"]

_VERSION = 2
_MAGIC = b"collage kernel\n\0"
_DIGEST_BYTES = hashlib.sha256().digest_size
_SIZES_BYTES = 16
_MOST_HEADER_BYTES = 16 << 20
_ALIGNMENT = 64
_MAX_BYTES = 4 << 30
_MOST_AT_ONCE_BYTES = _MAX_BYTES // 2
"""Of one store: what is larger would push out what it has just kept."""


class KernelStore:
    """In `folder`, the user's own where None; 4 GiB at most, the least recently used go. One that cannot be
    written keeps nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._files = PrivateFiles(folder or user_folder() / "kernels", ".kernel", _MAX_BYTES)
        self._digests: dict[int, tuple[Array, str]] = {}
        self._made_by: dict[tuple[type[Backend], str, Target], str | None] = {}
        self._left_bytes = _MOST_AT_ONCE_BYTES

    def key_of(self, backend: Backend, subgraph: Subgraph, variant: Variant, target: Target) -> str | None:
        """Of a group's kernel; None where it is not to be kept: on another device, of which the key knows
        nothing, none is.
        """
        if variant.device != CPU:
            return None
        if self._made_by_text(backend, target) is None:
            return None  # before any constant is looked at
        if any(isinstance(a, Graph) for n in subgraph.nodes for a in n.attributes.values()):
            return None  # a body's constants are not among the subgraph's
        constants = [subgraph.graph.constants[v] for v in subgraph.constants]
        if any(c.dtype.hasobject for c in constants):
            return None  # texts
        return self._key(backend, target, [subgraph.key, *map(self._digest_of, constants), repr(variant)])

    def key_of_conversion(
        self, backend: Backend, type: TensorType, source: Format, destination: Format, target: Target
    ) -> str | None:
        """Of a conversion's kernel; None where it is not to be kept, as of a group's."""
        if device_of((source, destination)) != CPU:
            return None
        return self._key(backend, target, [f"{type}: {source} -> {destination}"])

    def restored(self, key: str) -> Kernel | None:
        """The kernel that is kept under `key`; None where none is, or nothing can make one of it."""
        if (file := self._files.open(key)) is None:
            return None
        try:
            with file:
                stored = _read(key, file)
        except (LookupError, TypeError, ValueError):  # what a damaged header makes its readers raise, too
            self._files.remove(key)
            return None
        except OSError:
            return None
        try:
            return restore(stored)
        except Exception:  # whatever a library raises: the kernel is built, and that may say why not
            return None

    def keep(self, key: str, kernel: Kernel) -> None:
        """Where the kernel can be stored. What is in the way of that is in nobody else's."""
        with suppress(Exception):
            if (stored := kernel.stored()) is not None:
                self._left_bytes -= sum(a.nbytes for a in stored.arrays)
                if self._left_bytes >= 0:
                    self._files.put(key, _parts(key, stored))

    def _key(self, backend: Backend, target: Target, what: Iterable[str]) -> str | None:
        made_by = self._made_by_text(backend, target)
        return None if made_by is None else hashlib.sha256("\n".join([made_by, *what]).encode()).hexdigest()

    def _made_by_text(self, backend: Backend, target: Target) -> str | None:
        maker = type(backend), backend.name, target
        if maker not in self._made_by:
            self._made_by[maker] = _made_by(backend, target)
        return self._made_by[maker]

    def _digest_of(self, data: Array) -> str:
        """Of a constant's content; most are read by one group, some by many."""
        if id(data) not in self._digests:
            content = hashlib.sha256(row_major_bytes(data)).hexdigest()
            self._digests[id(data)] = data, f"{data.dtype}{data.shape}{content}"
        return self._digests[id(data)][1]


def _made_by(backend: Backend, target: Target) -> str | None:
    """Whose kernels, and where. None where nothing can be restored, or nobody can tell which code made it."""
    source = source_hash(type(backend).__module__)
    if not backend.stores_kernels or not source:
        return None
    info = backend.info()
    core = [importlib.metadata.version("collage-core")]
    core += [source_hash(f"collage_core.{name}") for name in ("backend", "ir", "operators")]
    core.append(source_hash("collage_run"))
    versions = [info.version, source, info.library_version or ""]
    return "\n".join([str(_VERSION), *core, runs_code_of(), backend.name, *versions, str(target)])


def _parts(key: str, stored: StoredKernel) -> Iterator[bytes | memoryview]:
    described = [[str(a.dtype), list(a.shape)] for a in stored.arrays]
    header = json.dumps({"kind": stored.kind, "facts": dict(stored.facts), "arrays": described}).encode()
    rest: list[bytes | memoryview] = [_sizes(header, stored.code), header, stored.code]
    offset = len(_MAGIC) + _DIGEST_BYTES + sum(map(len, rest))
    for array in stored.arrays:
        padding = bytes(-offset % _ALIGNMENT)
        rest += [padding, row_major_bytes(array)]
        offset += len(padding) + array.nbytes
    yield from (_MAGIC, _digest(key, rest), *rest)


def _read(key: str, file: FileIO) -> StoredKernel:
    """ValueError unless it is what was written under that key."""
    start = len(_MAGIC) + _DIGEST_BYTES
    offset = start + _SIZES_BYTES
    fixed = os.pread(file.fileno(), offset, 0)
    if len(fixed) < offset or not fixed.startswith(_MAGIC):
        raise ValueError("it is no kernel")
    header_bytes, code_bytes = np.frombuffer(fixed, "<u8", offset=start).tolist()
    if header_bytes > _MOST_HEADER_BYTES:
        raise ValueError("it is damaged")
    told: Any = json.loads(os.pread(file.fileno(), header_bytes, offset))
    code_end = offset + header_bytes + code_bytes
    places = list(_places(code_end, told["arrays"]))
    # Before any more of it is read, however long it is.
    if os.fstat(file.fileno()).st_size != (places[-1][1] if places else code_end):
        raise ValueError("it is cut short, or longer than it was")
    data = contents(file)
    if _digest(key, [data[start:].data]) != fixed[len(_MAGIC) : start]:
        raise ValueError("it is not what was written")
    arrays = [view(data[begin:end], shape, format) for begin, end, shape, format in places]
    return StoredKernel(
        told["kind"], told["facts"], bytes(data[code_end - code_bytes : code_end]), tuple(arrays)
    )


def _places(
    offset: int, described: Sequence[tuple[str, list[int]]]
) -> Iterator[tuple[int, int, list[int], Format]]:
    """Where arrays begin and end that follow each other from `offset` on, aligned, and what they are."""
    for dtype, shape in described:
        offset += -offset % _ALIGNMENT
        format = plain(dtype, shape)
        begin, offset = offset, offset + format.size_bytes(shape)
        yield begin, offset, shape, format


def _sizes(header: bytes, code: bytes) -> bytes:
    return np.array([len(header), len(code)], "<u8").tobytes()


def _digest(key: str, parts: Iterable[bytes | memoryview]) -> bytes:
    """Of a kernel and where it belongs: under another key it would be another one."""
    digest = hashlib.sha256(key.encode())
    for part in parts:
        digest.update(part)
    return digest.digest()
