"""A kernel that does nothing for a given time, so that what is queued behind it begins without a gap."""

from __future__ import annotations

import ctypes
from typing import Any

from collage_cuda import library

__all__ = ["Hold"]

_PTX = b"""
.version 6.0
.target sm_50
.address_size 64

.visible .entry hold(.param .u64 hold_ns)
{
    .reg .pred %waits;
    .reg .b64 %wanted, %began, %now;

    ld.param.u64 %wanted, [hold_ns];
    mov.u64 %began, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %began;
    setp.lt.u64 %waits, %now, %wanted;
    @%waits bra again;
    ret;
}
\0"""
_ONE = (1, 1, 1)


class Hold:
    """For the current context. %globaltimer:
    https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-globaltimer
    """

    def __init__(self) -> None:
        self._module = library.load_module(_PTX)
        self._kernel = library.function(self._module, "hold")

    def queue(self, hold_ns: int, stream: Any) -> None:
        """One thread that watches the clock; it touches no memory."""
        library.launch_kernel(self._kernel, _ONE, _ONE, 0, stream, ((hold_ns,), (ctypes.c_uint64,)))
