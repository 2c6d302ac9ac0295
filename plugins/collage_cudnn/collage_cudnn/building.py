"""From descriptions to a kernel on the GPU that is here: constants there, and the best plan chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from collage_core.backend import Kernel
from collage_core.devices import Memory
from collage_core.errors import BackendError, DeclinedError
from collage_cudnn import NAME
from collage_cudnn.choosing import Plans, Trial, built_plans, fault_of, in_order, most_plans
from collage_cudnn.description import Call, Description
from collage_cudnn.keeping import Keeper
from collage_cudnn.kernel import CallKernel, GraphKernel
from collage_cudnn.library import Library, load
from collage_cudnn.presence import library_version

__all__ = ["kernel_of"]


def kernel_of(ways: Sequence[Call | Description]) -> Kernel:
    """Of what says the same in several ways. DeclinedError with the library's reason where it has no plan, or
    none that keeps NaN.
    """
    from collage_cuda.device import DEVICE

    DEVICE.current()
    library = load()
    calls = [way for way in ways if isinstance(way, Call)]
    if calls:
        return _call_kernel(library, calls[0])
    return _graph_kernel(library, [way for way in ways if isinstance(way, Description)])


def _call_kernel(library: Library, call: Call) -> Kernel:
    called = library.old_call(call)
    fault = fault_of(library, called, call)
    if fault is not None:
        raise DeclinedError(fault)
    return CallKernel(library, called)


def _graph_kernel(library: Library, ways: Sequence[Description]) -> Kernel:
    from collage_cuda.choices import Choices

    keeper = Keeper(Choices([NAME, str(library_version())]), ways)
    known = keeper.known()
    if known is not None:
        way, name = known
        kernel = _again(library, ways[way], name) if way < len(ways) else None
        if kernel is not None:
            return kernel
        keeper.forget()
    return _chosen(library, ways, keeper)


def _again(library: Library, description: Description, name: str) -> Kernel | None:
    """By the plan that was taken before; None where the library has it no more."""
    try:
        graph = library.graph(description)
    except BackendError:
        return None
    index = next((i for i in range(graph.count) if graph.plan_name(i) == name), None)
    if index is None or not graph.build(index):
        return None
    return _kernel(library, graph, description, _uploaded(description), index)


def _chosen(library: Library, ways: Sequence[Description], keeper: Keeper) -> Kernel:
    trials: list[Trial] = []
    reasons: list[str] = []
    for description in ways:
        try:
            trials.append(_trial(library, description, most_plans(description, len(ways))))
        except BackendError as error:
            reasons.append(str(error))
    if not trials:
        raise DeclinedError(reasons[0])
    for took_ms, trial, index in in_order(trials):
        if took_ms == math.inf:
            continue
        if not trial.description.at_risk or trial.keeps_nan(index):
            way = next(i for i, description in enumerate(ways) if description is trial.description)
            keeper.keep(way, trial.plans.plan_name(index))
            return _kernel(library, trial.plans, trial.description, trial.constants, index)
    raise DeclinedError("all of cuDNN's plans fail, or make a number of what is none (NaN)")


def _trial(library: Library, description: Description, most: int) -> Trial:
    graph = library.graph(description)
    built = built_plans(graph, most)
    if not built:
        raise DeclinedError("cuDNN builds none of the plans that it has")
    return Trial(library, graph, description, _uploaded(description), built)


def _uploaded(description: Description) -> dict[int, Memory]:
    from collage_cuda.constants import upload

    return {n: upload(a) for n, a in description.constants.items()}


def _kernel(
    library: Library, plans: Plans, description: Description, constants: Mapping[int, Memory], index: int
) -> Kernel:
    plans.select(index)
    return GraphKernel(library, plans, description, constants, plans.workspace_bytes(index))
