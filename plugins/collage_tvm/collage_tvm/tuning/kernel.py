"""From a schedule that the tuner has found to a kernel."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tvm
import tvm_ffi
from collage_run.machine_code import MachineCodeKernel
from tvm.s_tir import Schedule as TvmSchedule
from tvm.s_tir import transform

from collage_core.backend import Kernel, Variant
from collage_core.errors import BackendError
from collage_core.formats import empty, own, plain
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_tvm.host import tvm_target
from collage_tvm.library import Function, function_of
from collage_tvm.nest import loop
from collage_tvm.tuning.records import Schedule
from collage_tvm.tuning.replay import replay
from collage_tvm.tuning.scheduled import REPACKING
from collage_tvm.tuning.workload import Workload, workload_of

__all__ = [
    "compile_tuned_ahead",
    "function_of_module",
    "kernel_of",
    "module_of",
    "tuned_kernel",
    "workload_hash",
]

# MetaSchedule loads the tensor instructions of all processors, which takes 10 s. What is tuned here, in
# float32 by its rules for plain processors, uses none of them.
sys.modules.setdefault("tvm.s_tir.tensor_intrin", ModuleType("tvm.s_tir.tensor_intrin"))


def module_of(function: Any) -> Any:
    """The module that MetaSchedule wants of a function."""
    return tvm.IRModule({"main": function.with_attr({"global_symbol": "main", "tirx.noalias": True})})


def workload_hash(module: Any) -> str:
    return f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}"


def function_of_module(module: Any, target: Target) -> Function:
    """The function of a scheduled module."""
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
    return function_of(list(function.params), function.body, target, flat=False)


def tuned_kernel(subgraph: Subgraph, variant: Variant, text: str, target: Target) -> Kernel:
    """BackendError if the schedule is damaged, of another version's function, or has what is not allowed."""
    workload = workload_of(subgraph, variant)
    return kernel_of(_scheduled(workload, text), workload, variant, target)


def compile_tuned_ahead(subgraph: Subgraph, variant: Variant, text: str, target: Target) -> None:
    """Make sure that `tuned_kernel` finds all that it loads. Errors as there."""
    workload = workload_of(subgraph, variant)
    schedule = _scheduled(workload, text)
    function_of_module(schedule.mod, target).compile_ahead()
    for copy in _copies(schedule, workload):
        copy.function.compile_ahead()


def _scheduled(workload: Workload, text: str) -> TvmSchedule:
    schedule = Schedule.from_text(text)
    module = module_of(workload.function)
    if workload_hash(module) != schedule.workload:
        raise BackendError("the tuned schedule is another version's: tune again")
    scheduled = TvmSchedule(module)
    replay(schedule.trace, scheduled)
    return scheduled


def kernel_of(schedule: TvmSchedule, workload: Workload, variant: Variant, target: Target) -> Kernel:
    """The kernel of a workload, scheduled in whatever way."""
    code = function_of_module(schedule.mod, target).compiled()
    held = [own(h).reshape(-1) for h in workload.held]
    for copy in _copies(schedule, workload):
        packed = empty([copy.elements], plain(str(held[copy.place].dtype), [copy.elements]))
        pointers = (a.ctypes.data_as(ctypes.c_void_p) for a in (held[copy.place], packed))
        if error := copy.function.compiled().load()(*pointers):
            raise BackendError(f"storing held{copy.place} in another order failed with code {error}")
        held[copy.place] = packed
    layouts = [f.layout for f in variant.inputs], [f.layout for f in variant.outputs]
    return MachineCodeKernel(code, *layouts, held, {})


@dataclass(frozen=True)
class _Copy:
    """What stores the held constant number `place` in another order, in which it has `elements` elements."""

    place: int
    elements: int
    function: Function


def _copies(schedule: TvmSchedule, workload: Workload) -> Iterator[_Copy]:
    """A schedule that stores a constant in another order begins with a block that copies a parameter:
    `function_of_module` leaves it out and has the copy for a parameter instead.
    """
    names = [p.name for p in workload.function.params]
    inputs = len(names) - 1 - len(workload.held)
    for child in schedule.get_child_blocks(schedule.get_sblock("root")):
        block = schedule.get(child)
        if REPACKING not in block.annotations:
            continue
        store = block.body
        body = store
        for axis in reversed(block.iter_vars):
            body = loop(axis.var, int(axis.dom.extent), body)
        function = function_of([store.value.source, store.buffer], body, Target(threads=1), flat=False)
        elements = math.prod(int(d) for d in store.buffer.shape)
        yield _Copy(names.index(store.value.source.name) - inputs, elements, function)
