"""The C library's calls about memory."""

from __future__ import annotations

import ctypes
from functools import cache

__all__ = ["libc"]


@cache
def libc() -> ctypes.CDLL:
    """With mmap, munmap and mprotect declared; `ctypes.get_errno` tells why one has failed."""
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    library.mmap.restype = pointer
    library.munmap.argtypes, library.munmap.restype = [pointer, size], number
    library.mprotect.argtypes, library.mprotect.restype = [pointer, size, number], number
    return library
