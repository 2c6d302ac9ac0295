"""Files as arrays of bytes, whose pages processes share."""

from __future__ import annotations

import ctypes
import os
from io import FileIO

import numpy as np

from collage_run.formats import Array, empty, plain
from collage_run.libc import libc

__all__ = ["contents"]

_MAPPED_FROM_BYTES = 64 << 10
"""Smaller files are read: a mapping takes whole pages, and of mappings a process has some 65,000."""


def contents(file: FileIO) -> Array:
    """Of a whole file: uint8, 64-byte aligned; it cannot be written, and does not keep the file open. OSError
    where there is no room, ValueError where it is being cut short.
    """
    size_bytes = os.fstat(file.fileno()).st_size
    if size_bytes >= _MAPPED_FROM_BYTES:
        return np.asarray(_Mapping(file.fileno(), size_bytes))
    file.seek(0)
    data = empty([size_bytes], plain("uint8", [size_bytes]))
    if file.readinto(data.data) != size_bytes:
        raise ValueError("it is cut short")
    data.flags.writeable = False
    return data


class _Mapping:
    """A file's bytes, until nobody has an array of them any more. Python's own `mmap` would keep a descriptor
    for each, and a process has some thousand.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        """OSError where there is no room."""
        self._unmap, self._size_bytes = libc().munmap, size_bytes
        read_only, private = 1, 2
        address = libc().mmap(None, size_bytes, read_only, private, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            self._address = None
            raise OSError(ctypes.get_errno(), "mmap")
        self._address = address
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size_bytes,),
            "data": (address, True),
        }

    def __del__(self) -> None:
        if self._address is not None:
            self._unmap(self._address, self._size_bytes)
