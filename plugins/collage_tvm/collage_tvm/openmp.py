"""What TVM's generated code expects of its runtime, on GNU OpenMP: the only file that touches llvmlite.

oneDNN, too, computes on GNU OpenMP's threads: a pool of TVM's own would either take processor time from them
by spinning or need some 30 us to wake.
"""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

__all__ = ["FILLED", "runtime_object"]

# Of tvm/runtime/c_backend_api.h. Tasks that the pool is too small for are not lost: the code divides its work
# by the number of threads that it is told.
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
FILLED = {
    "__TVMBackendParallelLaunch": "parallel_launch",
    "__TVMBackendAllocWorkspace": "alloc_workspace",
    "__TVMBackendFreeWorkspace": "free_workspace",
}
"""Variables through which generated code calls, and the functions here whose addresses they hold."""


@cache
def runtime_object(threads: int) -> bytes:
    """The object file of these functions, whose loops run on so many threads."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    return bytes(machine.emit_object(llvm.parse_assembly(_RUNTIME.replace("THREADS", str(threads)))))
