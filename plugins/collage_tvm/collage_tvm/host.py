"""This processor, as TVM's code generator sees it."""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.target import Target as TvmTarget

__all__ = ["tvm_target", "vector_lanes"]


@cache
def _host_cpu() -> str:
    return str(tvm.target.codegen.llvm_get_system_cpu())


@cache
def tvm_target(threads: int, slp: bool = True) -> Any:
    """slp: whether LLVM looks for scalars that could become a vector."""
    options = {} if slp else {"cl-opt": ["-vectorize-slp:bool=false"]}
    return TvmTarget({"kind": "llvm", "mcpu": _host_cpu(), "num-cores": threads, **options})


@cache
def vector_lanes() -> int:
    """float32 elements of a vector register of this processor."""
    with tvm_target(1):
        return 16 if tvm.target.codegen.target_has_features("avx512f") else 8
