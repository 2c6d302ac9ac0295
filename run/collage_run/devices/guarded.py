"""Buffers that notice when somebody writes beside them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from collage_run.devices.contract import Buffers
from collage_run.formats import Array, Format, view

__all__ = ["GuardedBuffers"]

_ALIGNMENT = 64
_FENCE_BYTES = 64
_FENCE = 0xA5
_GUARD_BYTES = 64 << 10
"""On either side of a buffer; at least a page on every machine."""
_HUGE_BYTES = 2 << 20
"""A huge page. Buffers from this size on lie on such pages, as in an executable, whose arena is one large
NumPy array, for which NumPy asks for them.
"""


@dataclass(frozen=True, slots=True)
class _Fence:
    where: str
    bytes: Array


class GuardedBuffers(Buffers):
    """Arrays aligned as executables align them, each between two fences of known bytes and two guard regions.

    protect: whether the guard regions may not be touched at all, so that whoever does so gets SIGSEGV there
    and then. Otherwise they are part of the fences, and `trespass` tells afterwards who was written beside.
    """

    def __init__(self, protect: bool = True) -> None:
        self._protect = protect
        self._fences: list[_Fence] = []

    def array(self, shape: Sequence[int], format: Format, name: str) -> Array:
        """A new uninitialised array of logical `shape`; `name` says what it is, as in "output 'y'"."""
        return view(self.bytes(format.size_bytes(shape), name), shape, format)

    def bytes(self, size_bytes: int, name: str) -> Array:
        """A new uninitialised uint8 array, as close to the guard region behind it as alignment allows."""
        page = os.sysconf("SC_PAGE_SIZE")
        aligned = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        inner = -(-(aligned + 2 * _FENCE_BYTES) // page) * page
        if size_bytes >= _HUGE_BYTES:
            raw, inner = _huge(inner)
        else:
            raw = np.frombuffer(mmap.mmap(-1, inner + 2 * _GUARD_BYTES), np.uint8)
        first, last = (0, len(raw)) if not self._protect else (_GUARD_BYTES, _GUARD_BYTES + inner)
        start = _GUARD_BYTES + inner - _FENCE_BYTES - aligned
        end = start + size_bytes
        for where, fence in (("before", raw[first:start]), ("behind", raw[end:last])):
            fence[...] = _FENCE
            self._fences.append(_Fence(f"{where} {name}", fence))
        if self._protect:
            for guard in (raw[:_GUARD_BYTES], raw[-_GUARD_BYTES:]):
                _forbid(guard)
        return raw[start:end]

    def trespass(self) -> str | None:
        """Beside what somebody has written ("behind output 'y'"); None if nobody has."""
        return next((f.where for f in self._fences if not (f.bytes == _FENCE).all()), None)


def _huge(inner: int) -> tuple[Array, int]:
    """At least `inner` bytes of whole huge pages between two guard regions, and how many they are."""
    inner = -(-inner // _HUGE_BYTES) * _HUGE_BYTES
    # Private: of shared mappings, Python's default, few systems make huge pages.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, inner + _HUGE_BYTES + 2 * _GUARD_BYTES, flags=private)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    skip = -(raw.ctypes.data + _GUARD_BYTES) % _HUGE_BYTES
    return raw[skip : skip + inner + 2 * _GUARD_BYTES], inner


def _forbid(guard: Array) -> None:
    """Let any access to whole pages of memory end in SIGSEGV."""
    libc = ctypes.CDLL(None, use_errno=True)
    none = 0  # PROT_NONE
    if libc.mprotect(ctypes.c_void_p(guard.ctypes.data), ctypes.c_size_t(guard.nbytes), none):
        raise OSError(ctypes.get_errno(), "mprotect failed")
