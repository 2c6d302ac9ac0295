"""The driver: machine code loaded, and launched on a stream. The only file that touches the GPU.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from collage_core.errors import BackendError

__all__ = ["Module", "launcher"]


class Module:
    """Loaded into the current context; unloaded when nobody holds it."""

    def __init__(self, cubin: bytes) -> None:
        self._module = _checked(driver.cuModuleLoadData(cubin))

    def function(self, name: str) -> Any:
        return _checked(driver.cuModuleGetFunction(self._module, name.encode()))

    def __del__(self) -> None:
        if hasattr(self, "_module"):
            driver.cuModuleUnload(self._module)


def launcher(function: Any, shape: Sequence[int], arguments_address: int, stream: int) -> Any:
    """A call that launches. shape: blocks, parts and threads. arguments_address: of an array of pointers, one
    to each argument, which the caller keeps.

    What it returns is falsy when it went well.
    """
    blocks, parts, threads = shape
    queue = driver.CUstream(stream)
    launch = driver.cuLaunchKernel

    def call() -> object:
        return launch(function, blocks, parts, 1, threads, 1, 1, 0, queue, arguments_address, 0)[0]

    return call


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call returns behind its status."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise BackendError(f"CUDA: {status.name}")
    return values[0] if values else None
