"""Built kernels kept on disk, so that another process that loads the same model builds none of them.

A file holds what `Kernel.stored` tells: facts and code under a digest, then constants as they are packed,
which are mapped, so that processes share their pages. Its name says of what the kernel is, down to the last
bit of its constants, of which version of which backend, and of which processor: another one finds nothing.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collage_core.backend import Backend, Kernel, StoredKernel, Variant
from collage_core.device import Target, cpuinfo
from collage_core.folders import user_folder
from collage_core.formats import Array, Format, plain, view
from collage_core.ir import Graph, Subgraph, TensorType
from collage_core.private_files import PrivateFiles
from collage_core.sources import source_hash

__all__ = ["KernelStore", "keeps"]

_VERSION = 1
_MAGIC = b"collage kernel\n\0"
_MOST_HEADER_BYTES = 16 << 20
_ALIGNMENT = 64
_MAX_BYTES = 4 << 30


class KernelStore:
    """In `folder`, the user's own where None; 4 GiB at most, the least recently used go. One that cannot be
    written keeps nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._files = PrivateFiles(folder or user_folder() / "kernels", ".kernel", _MAX_BYTES, durable=True)
        self._digests: dict[int, str] = {}
        self._made_by: dict[tuple[str, int], str] = {}

    def key_of(self, backend: Backend, subgraph: Subgraph, variant: Variant, target: Target) -> str:
        """Of a group's kernel."""
        constants = [self._digest_of(subgraph.graph, v) for v in subgraph.constants]
        return self._key(backend, target, [subgraph.key, *constants, str(variant), str(variant.options)])

    def key_of_conversion(
        self, backend: Backend, type: TensorType, source: Format, destination: Format, target: Target
    ) -> str:
        """Of a conversion's kernel."""
        return self._key(backend, target, [f"{type}: {source} -> {destination}"])

    def restored(self, key: str, backend: Backend) -> Kernel | None:
        """The kernel that is kept under `key`; None where none is, or the backend cannot make one of it."""
        if (file := self._files.open(key)) is None:
            return None
        try:
            with file:
                return backend.restore(_read(key, file.fileno()))
        except Exception:  # a damaged file, or whatever a library raises: it is built anew
            self._files.remove(key)
            return None

    def keep(self, key: str, kernel: Kernel) -> None:
        """Where the kernel can be stored."""
        if (stored := kernel.stored()) is not None:
            self._files.put(key, _parts(key, stored))

    def _key(self, backend: Backend, target: Target, what: Iterable[str]) -> str:
        made_by = self._made_by.get((backend.name, target.threads))
        if made_by is None:
            made_by = self._made_by[backend.name, target.threads] = _made_by(backend, target)
        return hashlib.sha256("\n".join([made_by, *what]).encode()).hexdigest()

    def _digest_of(self, graph: Graph, value: str) -> str:
        """Of a constant's content; most are read by one group, some by many."""
        data = graph.constants[value]
        known = self._digests.get(id(data))
        if known is None:
            content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            known = f"{data.dtype}{data.shape}{hashlib.sha256(content).hexdigest()}"  # type: ignore[arg-type]
            self._digests[id(data)] = known
        return known


def keeps(backend: Backend) -> bool:
    """Whether any of its kernels can be restored."""
    return type(backend).restore is not Backend.restore


def _made_by(backend: Backend, target: Target) -> str:
    info = backend.info()
    versions = [info.version, source_hash(type(backend).__module__), info.library_version or ""]
    return "\n".join([str(_VERSION), _processor(), backend.name, *versions, str(target.threads)])


@cache
def _processor() -> str:
    """Machine code is for one processor, and all that are told apart by nothing that code can use."""
    facts, told = cpuinfo(), ("model name", "cpu family", "model", "flags", "Features")
    return ", ".join(facts.get(name, "") for name in told)


def _parts(key: str, stored: StoredKernel) -> Iterator[bytes | memoryview]:
    arrays = [np.ascontiguousarray(a) for a in stored.arrays]
    described = [[str(a.dtype), list(a.shape)] for a in arrays]
    header = json.dumps({"facts": dict(stored.facts), "arrays": described}).encode()
    sizes = len(header).to_bytes(8, "little") + len(stored.code).to_bytes(8, "little")
    yield _MAGIC
    yield _digest(key, sizes, header, stored.code)
    yield sizes
    yield header
    yield stored.code
    offset = len(_MAGIC) + hashlib.sha256().digest_size + len(sizes) + len(header) + len(stored.code)
    for array in arrays:
        yield bytes(-offset % _ALIGNMENT)
        yield array.reshape(-1).view(np.uint8).data
        offset += -offset % _ALIGNMENT + array.nbytes


def _read(key: str, descriptor: int) -> StoredKernel:
    """ValueError unless it is what was written under that key."""
    size_bytes = os.fstat(descriptor).st_size
    mapped = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ)
    data: Array = np.frombuffer(mapped, np.uint8)
    start = len(_MAGIC)
    end = start + hashlib.sha256().digest_size
    digest, sizes = bytes(data[start:end]), bytes(data[end : end + 16])
    header_bytes, code_bytes = int.from_bytes(sizes[:8], "little"), int.from_bytes(sizes[8:], "little")
    if header_bytes > _MOST_HEADER_BYTES or end + 16 + header_bytes + code_bytes > size_bytes:
        raise ValueError("it is cut short")
    offset = end + 16 + header_bytes
    header, code = bytes(data[end + 16 : offset]), bytes(data[offset : offset + code_bytes])
    if bytes(data[:start]) != _MAGIC or _digest(key, sizes, header, code) != digest:
        raise ValueError("it is not what was written")
    told: Any = json.loads(header)
    return StoredKernel(told["facts"], code, tuple(_arrays(data, offset + code_bytes, told["arrays"])))


def _arrays(data: Array, offset: int, described: Sequence[tuple[str, list[int]]]) -> Iterator[Array]:
    for dtype, shape in described:
        offset += -offset % _ALIGNMENT
        format = plain(dtype, shape)
        end = offset + format.size_bytes(shape)
        if end > len(data):
            raise ValueError("it is cut short")
        yield view(data[offset:end], shape, format)
        offset = end


def _digest(key: str, sizes: bytes, header: bytes, code: bytes) -> bytes:
    """Of a kernel and where it belongs: under another key it would be another one."""
    return hashlib.sha256(b"\0".join([key.encode(), sizes, header, code])).digest()
