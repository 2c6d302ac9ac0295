"""NVRTC: from CUDA C++ to machine code. Needs no GPU.

https://docs.nvidia.com/cuda/nvrtc/: no option here makes arithmetic less exact; multiplications and additions
may become one instruction, which rounds once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cuda.bindings import nvrtc

from collage_core.errors import BackendError

__all__ = ["compile_source", "version"]

_NAME = b"collage.cu"
_OPTIONS = (b"--std=c++17", b"--disable-warnings", b"--ftz=false", b"--prec-div=true", b"--prec-sqrt=true")


@cache
def version() -> str:
    """Of the library, as in "13.0"."""
    major, minor = _checked(nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


def compile_source(source: str, architecture: str) -> bytes:
    """The cubin for an architecture, as in "sm_90". BackendError with the compiler's messages."""
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), _NAME, 0, None, None))
    try:
        options = [f"--gpu-architecture={architecture}".encode(), *_OPTIONS]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(f"NVRTC does not compile it for {architecture}: {_log(program)}")
        cubin = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(program: Any) -> str:
    log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace").strip()


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call returns behind its status: nothing, one value, or several."""
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendError(f"NVRTC: {status.name}")
    return values[0] if len(values) == 1 else values
