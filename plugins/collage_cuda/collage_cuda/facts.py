"""What GPU is here, as its driver tells a process that asks nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from collage_core.errors import CollageError
from collage_core.folders import user_folder
from collage_core.private_files import PrivateFiles

__all__ = ["facts", "failure"]

_LIMIT_S = 120
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_VARIABLES = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/version")
_MOST_BYTES = 1 << 16


def facts() -> Mapping[str, str]:
    """Its model, compute capability, memory and multiprocessors, the driver, and the newest CUDA of that.

    A process of its own asks the driver, which this one need not load. The answer is kept until the machine
    starts again, or has another driver. CollageError where that process fails.
    """
    found = _found()
    if isinstance(found, str):
        raise CollageError(found)
    return found


def failure() -> str | None:
    """Why there are no facts; None if there are."""
    found = _found()
    return found if isinstance(found, str) else None


@cache
def _found() -> Mapping[str, str] | str:
    """A failure is kept for this process alone: it may be mended."""
    try:
        return {**_kept_or_asked(), "driver": _driver()}
    except (CollageError, OSError, ValueError, subprocess.SubprocessError) as error:
        return f"the NVIDIA driver does not answer: {error}"


def _kept_or_asked() -> Mapping[str, str]:
    kept = PrivateFiles(user_folder() / "cuda", ".json", _MOST_BYTES)
    key = _key()
    if (file := kept.open(key)) is not None:
        with file:
            text = file.read()
        try:
            return _read(text)
        except ValueError:
            kept.remove(key)
    text = _ask()
    found = _read(text)
    kept.put(key, [text])
    return found


def _ask() -> bytes:
    told = subprocess.run(
        [sys.executable, "-P", "-m", "collage_cuda.probe"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if told.returncode:
        last = told.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CollageError("".join(last) or f"exit code {told.returncode}")
    return told.stdout


def _read(text: bytes) -> Mapping[str, str]:
    """ValueError where it was cut short."""
    found = json.loads(text)
    if not isinstance(found, dict) or "model" not in found:
        raise ValueError(text)
    return {str(name): str(value) for name, value in found.items()}


def _key() -> str:
    """Another one after a start, with another driver, other GPUs, or other ones to be seen."""
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    nodes = sorted(f"{p.name} {p.stat().st_rdev}" for p in Path("/dev").glob("nvidia[0-9]*"))
    chosen = [f"{name}={os.environ.get(name)}" for name in _VARIABLES]
    return hashlib.sha256("\n".join([boot, _driver(), *nodes, *chosen]).encode()).hexdigest()[:16]


def _driver() -> str:
    """As its kernel module says, where it does: of one machine and one CUDA there may be several."""
    try:
        return _DRIVER.read_text().partition("\n")[0].strip()
    except OSError:
        return ""
