"""Whether the GPU runs slower than it could: NVIDIA's management library is asked
(https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html).
"""

from __future__ import annotations

import time
from typing import Any

__all__ = ["Clocks"]

_POWER_CAP, _SLOWDOWN, _HEAT, _HARDWARE_HEAT, _POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
_PAUSE_S = 0.1
"""It takes the library 5 ms to say: asked around each run, it would take longer than all runs."""
_SLOWER = _POWER_CAP | _SLOWDOWN | _HEAT | _HARDWARE_HEAT | _POWER_BRAKE


class Clocks:
    """Of the GPU at a PCI address. Without the library, or where it does not say, nothing is ever slowed."""

    def __init__(self, pci_bus_id: str) -> None:
        self._slowed = 0
        self._is_slowed = False
        self._asked_s = -_PAUSE_S
        self._library: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
            pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
            self._library = pynvml
        except Exception:  # not installed, no such library, an older one: each raises another
            return

    def slowed(self) -> int:
        """How often, so far, it was slowed down when this was called. The library is asked ten times a second
        at most; in between its last answer holds.
        """
        now_s = time.monotonic()
        if self._library is not None and now_s - self._asked_s >= _PAUSE_S:
            self._asked_s = now_s
            self._is_slowed = bool(self._reasons() & _SLOWER)
        self._slowed += self._is_slowed
        return self._slowed

    def _reasons(self) -> int:
        """0 from a library that has ceased to answer, and is not asked any more."""
        try:
            return int(self._library.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except Exception:  # an NVMLError, which belongs to the library
            self._library = None
            return 0
