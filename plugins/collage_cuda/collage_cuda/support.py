"""Whether a GPU can be used here, told without loading anything."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from collage_cuda.facts import failure

__all__ = ["missing"]

_CONTROL: tuple[str, ...] = ("/dev/nvidiactl", "/dev/dxg")
"""What the driver is asked through, on Linux and in Windows' subsystem for it."""
_BINDINGS = "cuda.bindings"


def missing(modules: Sequence[str], package: str = "collage-cuda") -> str | None:
    """Why there is nothing to run on; None if there is. modules: what else has to be installed, which
    `package[gpu]` brings. Where all is here the driver is asked once, in a process of its own.
    """
    if not any(Path(control).exists() for control in _CONTROL):
        return f"no NVIDIA GPU is here (there is no {_CONTROL[0]})"
    absent = [name for name in (_BINDINGS, *modules) if not _is_installed(name)]
    if absent:
        return f"{', '.join(absent)} is not installed: pip install '{package}[gpu]'"
    return failure()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even what holds it
        return False
