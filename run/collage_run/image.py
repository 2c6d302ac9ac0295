"""Machine code that lies anywhere in memory, made callable without a linker or a compiler.

Whoever compiles a kernel links it, once. Loading copies its bytes, and writes some addresses into them.
"""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from collage_run.libc import libc

__all__ = ["OPENMP", "Image", "MachineCode"]

OPENMP = "libgomp.so.1"
_LIBRARIES = (OPENMP, "libm.so.6", "libc.so.6", "libgcc_s.so.1")
"""Where functions that an image calls are looked up, in this order. The last one has what processors lack:
rounding a double to 16 bits, since GCC 12.
"""
_ADDRESS_BYTES = 8

MachineCode = Callable[..., int]
"""A C function of pointers (`ctypes.c_void_p`); 0 if it went well. It keeps what it consists of alive, and
lets other Python threads run meanwhile."""


@dataclass(frozen=True)
class Image:
    """Code and the constants it reads, to be copied to the beginning of a page.

    entry: where its function begins, in bytes; it takes so many `parameters`. addresses: where it wants
    addresses (8 bytes each), of a library's function by name, or of a place in the image by its offset.
    """

    code: bytes
    entry: int
    parameters: int
    addresses: tuple[tuple[int, str | int], ...]

    def to_bytes(self) -> bytes:
        head = {"entry": self.entry, "parameters": self.parameters, "addresses": self.addresses}
        return json.dumps(head).encode() + b"\n" + self.code

    @classmethod
    def from_bytes(cls, data: bytes) -> Image:
        """ValueError unless `to_bytes` has written it."""
        head, newline, code = data.partition(b"\n")
        told = json.loads(head)
        addresses = tuple((offset, what) for offset, what in told["addresses"])
        image = cls(code, told["entry"], told["parameters"], addresses)
        places = [image.entry, *(what for _, what in addresses if isinstance(what, int))]
        places += [end for offset, _ in addresses for end in (offset, offset + _ADDRESS_BYTES)]
        if not newline or min(places) < 0 or max(places) > len(code):
            raise ValueError("it is no image, or one that was cut short")
        return image

    def load(self) -> MachineCode:
        """Its function. OSError where a library is missing that it calls, or where this process may not make
        code executable.
        """
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, len(self.code), flags=private, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        memory.write(self.code)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for offset, what in self.addresses:
            address = start + what if isinstance(what, int) else _address_of(what)
            memory[offset : offset + _ADDRESS_BYTES] = address.to_bytes(_ADDRESS_BYTES, "little")
        if libc().mprotect(start, len(self.code), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "this process may not make compiled code executable")
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * self.parameters)
        function: Any = prototype(start + self.entry)
        function.memory = memory
        return function  # type: ignore[no-any-return]  # ctypes builds the class at run time


@cache
def _address_of(name: str) -> int:
    for file in _LIBRARIES:
        try:
            function = getattr(ctypes.CDLL(file), name)
        except (AttributeError, OSError):
            continue
        return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
    raise OSError(f"{name}, which compiled code calls, is in none of {', '.join(_LIBRARIES)}")
