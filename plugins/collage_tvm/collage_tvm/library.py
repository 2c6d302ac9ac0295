"""Compiling with TVM and calling what it compiled: the only file that touches TVM's runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target as TvmTarget

from collage_core.backend import Bound, Kernel
from collage_core.device import Target
from collage_core.formats import Array, Layout, empty, plain

__all__ = ["TvmKernel", "compile_function", "dense", "own", "vector_lanes"]


@cache
def _host_cpu() -> str:
    return str(tvm.target.codegen.llvm_get_system_cpu())


@cache
def _target(threads: int) -> Any:
    return TvmTarget({"kind": "llvm", "mcpu": _host_cpu(), "num-cores": threads})


@cache
def vector_lanes() -> int:
    """float32 elements of a vector register of this processor."""
    with _target(1):
        return 16 if tvm.target.codegen.target_has_features("avx512f") else 8


def compile_function(parameters: Sequence[Any], body: Any, target: Target) -> Any:
    """The packed function `main` of a loop nest over flat buffers."""
    attributes = tvm.ir.make_node("ir.DictAttrs", **{"global_symbol": "main", "tirx.noalias": True})
    function = tirx.PrimFunc(list(parameters), body, attrs=attributes)
    module = tvm.IRModule({"main": function})
    executable = tvm.compile(module, _target(target.threads), tir_pipeline=_pipeline())
    return executable["main"]


@cache
def _pipeline() -> str:
    """The name of the passes that lower our loop nests.

    TVM's own lists begin with a simplifier that puts every variable's value in place of the variable. Nests
    written here keep what is used twice in variables, some of them twenty deep: their code would grow
    exponentially.
    """

    def lower(module: Any, context: Any) -> Any:
        passes = [
            tirx.transform.LowerTIRx(),
            tirx.transform.LowerTIRxOpaque(),
            tirx.transform.FlattenBuffer(),
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.VectorizeLoop(True),
            tirx.transform.UnrollLoop(),
            tirx.transform.VerifyMemory(),
            tirx.transform.AnnotateEntryFunc(),
            tirx.transform.SplitHostDevice(),
            tirx.transform.MakePackedAPI(),
            tirx.transform.BF16StorageLegalize(),
        ]
        return tvm.ir.transform.Sequential(passes)(module)

    name = "collage"
    lowering = tvm.transform.module_pass(lower, opt_level=0)
    stages = tirx.compilation_pipeline
    stages.register_tir_pipeline(
        name, lambda: (lowering, stages.finalize_host_passes, stages.finalize_device_passes)
    )
    return name


def own(data: Array) -> Array:
    """A flat copy that TVM can alias: 64-byte aligned, row-major, a bool in a byte."""
    copy = empty(data.shape, plain(str(data.dtype), data.shape))
    copy[...] = data
    return dense(copy, tuple(range(data.ndim)))


def dense(array: Array, layout: Layout) -> Array:
    """The elements of a dense array as they lie in memory, flat, without a copy."""
    stored = array.transpose(layout)
    if not stored.flags.c_contiguous:
        raise ValueError(
            f"an array of shape {array.shape} with strides {array.strides} is not dense in layout {layout}"
        )
    flat = stored.reshape(-1)
    return flat.view(np.uint8) if flat.dtype == np.bool_ else flat


def _tensor(flat: Array) -> Any:
    if flat.ctypes.data % 64:
        raise ValueError(f"a buffer at {flat.ctypes.data:#x} is not aligned to 64 bytes, as TVM needs it")
    return tvm.runtime.from_dlpack(flat)


class TvmKernel(Kernel):
    """A compiled group and the constants it reads."""

    def __init__(
        self,
        function: Any,
        inputs: Sequence[Layout],
        outputs: Sequence[Layout],
        constants: Sequence[Array],
        may_alias: Mapping[int, int],
    ) -> None:
        self._function = function
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._constants = [_tensor(c) for c in constants]
        self.may_alias = dict(may_alias)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array) -> Bound:
        given = [_tensor(dense(a, o)) for a, o in zip(inputs, self._inputs, strict=True)]
        results = [_tensor(dense(a, o)) for a, o in zip(outputs, self._outputs, strict=True)]
        return partial(self._function, *given, *self._constants, *results)
