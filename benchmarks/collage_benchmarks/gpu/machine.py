"""`python -m collage_benchmarks.gpu.machine`: what a machine with a GPU says of itself, as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from typing import Any

from collage_core.plugins import default_registry

__all__ = ["main", "report"]

_PACKAGES = (
    "collage",
    "nvidia",
    "cuda",
    "torch",
    "triton",
    "cupy",
    "jax",
    "numpy",
    "onnx",
    "nvmath",
    "apache",
)
_QUERY = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,clocks.sm,persistence_mode"


def main() -> int:
    json.dump(report(), sys.stdout, indent=1, default=str)
    return 0


def report() -> dict[str, Any]:
    """Devices, the driver's own words, packages that matter, and how cuDNN describes the device to itself."""
    devices = {d.name: {**d.facts(), "reason": d.info().reason} for d in default_registry().devices.values()}
    return {
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "devices": devices,
        "nvidia_smi": _said(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv"]),
        "packages": {
            d.name: d.version
            for d in importlib.metadata.distributions()
            if d.name and d.name.lower().startswith(_PACKAGES)
        },
        "cudnn_description": _described(),
    }


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except OSError as error:
        return str(error)


def _described() -> str:
    """What `create_device_properties` takes on a machine without a GPU."""
    try:
        import cudnn

        told = cudnn.create_device_properties(0).serialize()
        return told if isinstance(told, str) else bytes(told).decode()
    except Exception as error:  # a library that is not here, or has no GPU
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
