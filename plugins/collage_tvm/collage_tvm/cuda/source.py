"""From launches to CUDA C++: TVM's code generator for one device, without its runtime and without a GPU."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target as TvmTarget

from collage_core.errors import BackendError
from collage_tvm.cuda.launch import Launch

__all__ = ["cuda_source", "cuda_target", "entry_of"]

_COMPILE = "tvm_callback_cuda_compile"
"""What TVM calls with the source where its runtime has found a driver."""
_CATCHING = threading.Lock()
_FIRST_FUNCTION = 'extern "C" __global__'
_DEVICE_KERNEL = 2
"""TVM's CallingConv::kDeviceKernelLaunch."""
_LITERAL = re.compile(r"\(\*\(float \*\)\(&\((-?\d+)\)\)\)")
"""The bits of a float as TVM writes them where it knows them: the address of a number."""
_DROPS_NAN = re.compile(r"\b(max|min)\(")

PRELUDE = r"""
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fc00000)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ll)
#define CUDART_NAN __longlong_as_double(0x7ff8000000000000ll)

// CUDA's own max and min take the number where one operand is a NaN; these take the second operand.
template <class T> __device__ __forceinline__ T collage_max(T a, T b) { return a > b ? a : b; }
template <class T> __device__ __forceinline__ T collage_min(T a, T b) { return a < b ? a : b; }

template <class T> __device__ __forceinline__ T collage_shuffle(T value, int lanes) {
  return __shfl_xor_sync(0xffffffffu, value, lanes);
}

__device__ __forceinline__ float collage_from_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ unsigned short collage_to_half(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

"""


def entry_of(number: int) -> str:
    """The name of a launch's function."""
    return f"collage_kernel{number}"


@cache
def cuda_target(architecture: str) -> Any:
    """Of TVM. architecture: as in "sm_90"."""
    return TvmTarget({"kind": "cuda", "arch": architecture, "host": {"kind": "llvm"}})


def cuda_source(parameters: Sequence[Any], launches: Sequence[Launch], architecture: str) -> str:
    """One function for each launch, over all `parameters` as pointers. architecture: as in "sm_90".

    BackendError where TVM cannot write it.
    """
    target = cuda_target(architecture)
    functions = {
        entry_of(k): _function(entry_of(k), parameters, launch, target) for k, launch in enumerate(launches)
    }
    with target:
        module = _lowering()(tvm.IRModule(functions))
        with _sources() as written:
            built = tvm_ffi.get_global_func("target.build.cuda")(module, target)
            text = written[-1] if written else str(built.inspect_source())
    start = text.find(_FIRST_FUNCTION)
    if start < 0:
        raise BackendError("TVM wrote no CUDA function")
    written_out = _LITERAL.sub(r"__int_as_float(\1)", text[start:])
    return PRELUDE + _DROPS_NAN.sub(r"collage_\1(", written_out)


@contextmanager
def _sources() -> Iterator[list[str]]:
    """What TVM would have compiled meanwhile. It is compiled elsewhere, as one wants it."""
    written: list[str] = []

    def keep(code: str, *rest: Any) -> bytes:
        written.append(str(code))
        return b"none"

    with _CATCHING:
        before = tvm_ffi.get_global_func(_COMPILE, allow_missing=True)
        tvm_ffi.register_global_func(_COMPILE, keep, override=True)
        try:
            yield written
        finally:
            if before is not None:
                tvm_ffi.register_global_func(_COMPILE, before, override=True)


def _function(name: str, parameters: Sequence[Any], launch: Launch, target: Any) -> Any:
    pointers = [tirx.Var(b.name, ir.PointerType(ir.PrimType(b.dtype))) for b in parameters]
    declared = [tirx.DeclBuffer(b, data=p) for b, p in zip(parameters, pointers, strict=True)]
    attributes = {
        "global_symbol": name,
        "tirx.noalias": True,
        "calling_conv": _DEVICE_KERNEL,
        "target": target,
        "tirx.is_global_func": True,
    }
    body = tirx.SeqStmt([*declared, launch.statement()])
    return tirx.PrimFunc(pointers, body, attrs=ir.make_node("ir.DictAttrs", **attributes))


@cache
def _lowering() -> Any:
    """See `collage_tvm.library` on what TVM's own list of passes does to such functions. Loops that are to be
    unrolled are left to NVRTC.
    """
    return tvm.ir.transform.Sequential(
        [
            tirx.transform.LowerTIRx(),
            tirx.transform.LowerTIRxOpaque(),
            tirx.transform.LowerIntrin(),
        ]
    )
