"""The weights of a bundle as bytes: compared while they would be written, mapped, or read and checked."""

from __future__ import annotations

import zipfile
import zlib
from io import FileIO
from typing import IO

import numpy as np
from collage_run.archives import data_offset

from collage_core.formats import Array, empty, plain
from collage_core.ir import WEIGHTS_FILE
from collage_core.ir.onnx_tensors import read_into

__all__ = ["Compared", "mapped_weights", "read_weights"]

_CHUNK_BYTES = 4 << 20


class Compared:
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


def mapped_weights(file: FileIO, archive: zipfile.ZipFile) -> Array:
    """The bytes of the entry of weights, as they lie in the file."""
    info = archive.getinfo(WEIGHTS_FILE)
    if not info.file_size:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r", data_offset(file, info), (info.file_size,))


def read_weights(file: FileIO, archive: zipfile.ZipFile) -> Array:
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
