"""Compiled objects made callable: the only file that touches llvmlite.

TVM writes object files; LLVM's run-time linker loads them, and the parallel loops in them run on GNU OpenMP's
threads, which oneDNN, too, computes on: a pool of TVM's own would either take processor time from them by
spinning or need some 30 us to wake.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm

__all__ = ["OPENMP", "MachineCode", "load"]

OPENMP = "libgomp.so.1"
_USED = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")

MachineCode = Callable[..., int]
"""A C function of pointers (`ctypes.c_void_p`); 0 if it went well. It keeps what it consists of alive, and
lets other Python threads run meanwhile."""

# What TVM's generated code expects of its runtime (tvm/runtime/c_backend_api.h). Tasks that the pool is too
# small for are not lost: the code divides its work by the number of threads that it is told.
_RUNTIME = r"""
%Environment = type { ptr, i32 }
%Task = type { ptr, ptr, i32 }

declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)

define void @task(ptr %data) {
  %environment = alloca %Environment
  %function = load ptr, ptr %data
  %second = getelementptr %Task, ptr %data, i32 0, i32 1
  %closure = load ptr, ptr %second
  %thread = call i32 @omp_get_thread_num()
  %threads = call i32 @omp_get_num_threads()
  store ptr null, ptr %environment
  %count = getelementptr %Environment, ptr %environment, i32 0, i32 1
  store i32 %threads, ptr %count
  %error = call i32 %function(i32 %thread, ptr %environment, ptr %closure)
  %third = getelementptr %Task, ptr %data, i32 0, i32 2
  %before = atomicrmw or ptr %third, i32 %error seq_cst
  ret void
}

define i32 @parallel_launch(ptr %function, ptr %closure, i32 %tasks) {
  %data = alloca %Task
  store ptr %function, ptr %data
  %second = getelementptr %Task, ptr %data, i32 0, i32 1
  store ptr %closure, ptr %second
  %third = getelementptr %Task, ptr %data, i32 0, i32 2
  store i32 0, ptr %third
  call void @GOMP_parallel(ptr @task, ptr %data, i32 THREADS, i32 0)
  %error = load atomic i32, ptr %third seq_cst, align 4
  ret i32 %error
}

define ptr @alloc_workspace(i32 %type, i32 %device, i64 %bytes, i32 %code, i32 %bits) {
  %more = add i64 %bytes, 63
  %whole = and i64 %more, -64
  %memory = call ptr @aligned_alloc(i64 64, i64 %whole)
  ret ptr %memory
}

define i32 @free_workspace(i32 %type, i32 %device, ptr %memory) {
  call void @free(ptr %memory)
  ret i32 0
}
"""
_PROVIDED = {
    "__TVMBackendParallelLaunch": "parallel_launch",
    "__TVMBackendAllocWorkspace": "alloc_workspace",
    "__TVMBackendFreeWorkspace": "free_workspace",
}


def load(object_file: bytes, name: str, parameters: int, threads: int) -> MachineCode:
    """The function `name` of an object file, which takes `parameters` pointers; its parallel loops run on
    `threads` threads. OSError where GNU OpenMP is not installed."""
    runtime = _runtime(threads)
    engine = _engine("")
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
    engine.finalize_object()
    for variable, provided in _PROVIDED.items():
        if address := engine.get_global_value_address(variable):
            ctypes.c_void_p.from_address(address).value = runtime.get_function_address(provided)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * parameters)
    function: Any = prototype(engine.get_function_address(name))
    function.engines = engine, runtime
    return function  # type: ignore[no-any-return]  # ctypes builds the class at run time


@cache
def _runtime(threads: int) -> Any:
    _initialize()
    return _engine(_RUNTIME.replace("THREADS", str(threads)))


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    openmp = ctypes.CDLL(OPENMP)
    for name in _USED:
        llvm.add_symbol(name, ctypes.cast(getattr(openmp, name), ctypes.c_void_p).value)


def _engine(assembly: str) -> Any:
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(assembly), machine)
    engine.finalize_object()
    return engine
