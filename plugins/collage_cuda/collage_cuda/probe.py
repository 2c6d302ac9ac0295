"""`python -m collage_cuda.probe`: what `facts` asks a process of its own, as JSON."""

from __future__ import annotations

import json

from collage_cuda.context import context

__all__ = ["main"]


def main() -> None:
    opened = context()
    library, device = opened.library, opened.device
    major, minor = library.compute_capability(device)
    newest = library.driver_version()
    told = {
        "model": library.model(device),
        "compute_capability": f"{major}.{minor}",
        "memory_mib": str(library.memory_bytes(device) >> 20),
        "multiprocessors": str(library.attribute(device, "MULTIPROCESSOR_COUNT")),
        "driver_cuda": f"{newest // 1000}.{newest % 1000 // 10}",
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
