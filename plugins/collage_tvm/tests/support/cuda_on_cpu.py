"""CUDA C++ as C++: the functions that are written for the GPU, run on the CPU one thread at a time.

Each thread of a block is a coroutine. It runs until it waits for others, at a barrier or where registers are
exchanged, and all others have come as far before it goes on. Which of them is first changes every time: what
needs a barrier and has none is found out. Blocks run one after the other.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from collage_tvm.cuda.backend import TvmCudaBackend
from collage_tvm.cuda.build import Program, conversion_program, program

from collage_core.backend import Bound, Kernel, Variant
from collage_core.devices import Queue
from collage_core.errors import Refusal
from collage_core.formats import Array, Format, own
from collage_core.ir import Subgraph, TensorType
from collage_core.target import Target

COMPILER = shutil.which("g++")
_KEPT = TemporaryDirectory(prefix="collage-cuda-on-cpu-")
_FOLDER = Path(_KEPT.name)

_HEAD = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <utility>
#include <immintrin.h>
#include <ucontext.h>

struct Place { int x, y, z; };
static Place threadIdx, blockIdx;
static int threads, waiting;
static ucontext_t scheduler, *contexts;
static unsigned long long exchanged[1024];

static void wait_for_others() { swapcontext(&contexts[threadIdx.x], &scheduler); }
static void __syncthreads() { wait_for_others(); }

template <class T> static T __shfl_xor_sync(unsigned, T value, int lanes) {
  memcpy(&exchanged[threadIdx.x], &value, sizeof(T));
  wait_for_others();
  T other;
  memcpy(&other, &exchanged[threadIdx.x ^ lanes], sizeof(T));
  wait_for_others();
  return other;
}

static float __int_as_float(unsigned bits) { float v; memcpy(&v, &bits, 4); return v; }
static double __longlong_as_double(long long bits) { double v; memcpy(&v, &bits, 8); return v; }

template <class T> struct alignas(2 * sizeof(T)) Two { T x, y; };
template <class T> struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) Four { T x, y, z, w; };
using float2 = Two<float>; using float4 = Four<float>; using double2 = Two<double>;
using int2 = Two<int>; using int4 = Four<int>; using longlong2 = Two<long long>;
using uint2 = Two<unsigned>; using uint4 = Four<unsigned>;
using uchar2 = Two<unsigned char>; using uchar4 = Four<unsigned char>;
using char2 = Two<signed char>; using char4 = Four<signed char>;
using short2 = Two<short>; using short4 = Four<short>;
using ushort2 = Two<unsigned short>; using ushort4 = Four<unsigned short>;

#define __global__
#define __device__ static
#define __forceinline__ inline
#define __launch_bounds__(n)
typedef unsigned char uchar;
typedef unsigned short ushort;
"""

_MAIN = r"""
static void (*entered)(void**);
static void** handed;
static bool* done;
static void enter() {
  entered(handed);
  done[threadIdx.x] = true;
  wait_for_others();
}

static void run(void (*function)(void**), void** arguments, int blocks, int parts, int count) {
  const size_t stack = 128 << 10;
  char* stacks = (char*)malloc(stack * count);
  contexts = (ucontext_t*)malloc(sizeof(ucontext_t) * count);
  done = (bool*)malloc(count);
  entered = function; handed = arguments; threads = count;
  for (int p = 0; p < parts; ++p) for (int b = 0; b < blocks; ++b) {
    blockIdx = {b, p, 0};
    for (int t = 0; t < count; ++t) {
      done[t] = false;
      getcontext(&contexts[t]);
      contexts[t].uc_stack.ss_sp = stacks + stack * t;
      contexts[t].uc_stack.ss_size = stack;
      contexts[t].uc_link = nullptr;
      makecontext(&contexts[t], enter, 0);
    }
    bool backwards = false;
    for (bool left = true; left; backwards = !backwards) {
      left = false;
      for (int k = 0; k < count; ++k) {
        const int t = backwards ? count - 1 - k : k;
        if (done[t]) continue;
        threadIdx = {t, 0, 0};
        swapcontext(&scheduler, &contexts[t]);
        left |= !done[t];
      }
    }
  }
  free(stacks); free(contexts); free(done);
}

template <class... A, size_t... I>
static void call(void (*function)(A...), void** arguments, std::index_sequence<I...>) {
  function((A)arguments[I]...);
}
template <class... A> static void call(void (*function)(A...), void** arguments) {
  call(function, arguments, std::index_sequence_for<A...>());
}
"""
_CALLED = r"""
extern "C" void run_ENTRY(void** arguments, int blocks, int parts, int count) {
  run([](void** given) { call(&ENTRY, given); }, arguments, blocks, parts, count);
}
"""
_IN_CPP = {
    'asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));': "value = _cvtsh_ss(bits);",
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));': "bits = _cvtss_sh(value, 0);",
}
"""Instructions of the GPU."""
_ITS_OWN = re.compile(r"^typedef .*_t;$", re.MULTILINE)
"""Types that C++ has already."""


def _source(made: Program) -> str:
    text = _ITS_OWN.sub("", made.source).replace("__shared__ alignas(64)", "alignas(64) static")
    for there, here in _IN_CPP.items():
        assert there in text
        text = text.replace(there, here)
    return _HEAD + text + _MAIN + "".join(_CALLED.replace("ENTRY", entry) for entry in made.entries)


def _library(made: Program) -> ctypes.CDLL:
    """The program's functions."""
    source = _source(made)
    name = hashlib.sha256(source.encode()).hexdigest()[:24]
    library = _FOLDER / f"{name}.so"
    if not library.exists():
        path = _FOLDER / f"{name}.cpp"
        path.write_text(source)
        options = ["-O1", "-w", "-std=c++17", "-mf16c", "-ffp-contract=off", "-shared", "-fPIC"]
        told = subprocess.run(
            [str(COMPILER), *options, "-o", str(library), str(path)], capture_output=True, text=True
        )
        assert told.returncode == 0, told.stderr[:4000]
    return ctypes.CDLL(str(library))


class _KernelOnCpu(Kernel):
    def __init__(self, made: Program) -> None:
        self._made, self._library = made, _library(made)
        self._constants = [own(make()) for make in made.constants]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Any, queue: Queue) -> Bound:
        addresses = [a.ctypes.data for a in (*inputs, *self._constants, *outputs)]
        arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        calls = [
            (getattr(self._library, f"run_{entry}"), shape)
            for entry, shape in zip(self._made.entries, self._made.shapes, strict=True)
        ]

        def call() -> None:
            for function, shape in calls:
                function(arguments, *shape)

        return call


class CudaOnCpu(TvmCudaBackend):
    """What is offered on the GPU, in the host's memory."""

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        offered = super().variants(subgraph, replace(target, accelerators=("cuda",)))
        if isinstance(offered, Refusal):
            return offered
        return [
            Variant(tuple(f.on("cpu") for f in v.inputs), tuple(f.on("cpu") for f in v.outputs), v.options)
            for v in offered
        ]

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        return super().converts(type, source.on("cuda"), destination.on("cuda"), target)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return _KernelOnCpu(program(subgraph, variant, "sm_90"))

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        return _KernelOnCpu(conversion_program(type, source, destination, "sm_90"))
