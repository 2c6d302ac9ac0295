"""From a schedule that the tuner has found to a kernel."""

from __future__ import annotations

import ctypes
import math
import sys
from types import ModuleType
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule as TvmSchedule
from tvm.s_tir import transform

from collage_core.backend import Kernel, Variant
from collage_core.device import Target
from collage_core.errors import BackendError
from collage_core.formats import Array, empty, plain
from collage_core.ir import Subgraph
from collage_tvm.library import TvmKernel, compile_function, own, tvm_target
from collage_tvm.machine_code import MachineCode
from collage_tvm.nest import loop
from collage_tvm.tuning.records import Schedule
from collage_tvm.tuning.replay import REPACKING, replay
from collage_tvm.tuning.workload import Workload, workload_of

__all__ = ["compiled", "kernel_of", "module_of", "tuned_kernel", "workload_hash"]

# MetaSchedule loads the tensor instructions of all processors, which takes 10 s. What is tuned here, in
# float32 by its rules for plain processors, uses none of them.
sys.modules.setdefault("tvm.s_tir.tensor_intrin", ModuleType("tvm.s_tir.tensor_intrin"))


def module_of(function: Any) -> Any:
    """The module that MetaSchedule wants of a function."""
    return tvm.IRModule({"main": function.with_attr({"global_symbol": "main", "tirx.noalias": True})})


def workload_hash(module: Any) -> str:
    return f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}"


def compiled(module: Any, target: Target, *, keep: bool = True) -> MachineCode:
    """The function of a scheduled module; `keep`: see `compile_function`."""
    passes = [
        transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True),
        transform.CanonicalizeLoop(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
        transform.LowerMatchBuffer(),
        transform.StmtSimplify(),
        transform.LowerOpaqueBlock(),
        transform.HoistIfThenElse(),
    ]
    with tvm_target(target.threads):
        function = tvm.ir.transform.Sequential(passes)(module)["main"]
    return compile_function(list(function.params), function.body, target, keep=keep, flat=False)


def tuned_kernel(subgraph: Subgraph, variant: Variant, text: str, target: Target) -> Kernel:
    """BackendError if the schedule is damaged, of another version's function, or has what is not allowed."""
    schedule = Schedule.from_text(text)
    workload = workload_of(subgraph, variant)
    module = module_of(workload.function)
    if workload_hash(module) != schedule.workload:
        raise BackendError("the tuned schedule is another version's: tune again")
    scheduled = TvmSchedule(module)
    replay(schedule.trace, scheduled)
    return kernel_of(scheduled, workload, variant, target)


def kernel_of(schedule: TvmSchedule, workload: Workload, variant: Variant, target: Target) -> Kernel:
    """The kernel of a workload, scheduled in whatever way."""
    function = compiled(schedule.mod, target)
    held = _repacked(schedule, workload)
    layouts = [f.layout for f in variant.inputs], [f.layout for f in variant.outputs]
    return TvmKernel(function, *layouts, held, {})


def _repacked(schedule: TvmSchedule, workload: Workload) -> list[Array]:
    """The held constants, flat, those that the schedule stores in another order in that order.

    Such a schedule begins with a block that copies a parameter: `compiled` leaves it out and has the copy for
    a parameter instead.
    """
    names = [p.name for p in workload.function.params]
    inputs = len(names) - 1 - len(workload.held)
    held = [own(h) for h in workload.held]
    for child in schedule.get_child_blocks(schedule.get_sblock("root")):
        block = schedule.get(child)
        if REPACKING not in block.annotations:
            continue
        store = block.body
        place = names.index(store.value.source.name) - inputs
        body = store
        for axis in reversed(block.iter_vars):
            body = loop(axis.var, int(axis.dom.extent), body)
        copy = compile_function([store.value.source, store.buffer], body, Target(threads=1), flat=False)
        shape = [int(d) for d in store.buffer.shape]
        packed = empty([math.prod(shape)], plain(str(held[place].dtype), [math.prod(shape)]))
        if error := copy(*(a.ctypes.data_as(ctypes.c_void_p) for a in (held[place], packed))):
            raise BackendError(f"storing {names[place + inputs]} in another order failed with code {error}")
        held[place] = packed
    return held
