"""Building: every group of a placement becomes a kernel of its backend."""

from __future__ import annotations

import os
from collections.abc import Callable

from collage_core.backend import Backend, BackendKind, Kernel
from collage_core.errors import BackendError, CollageError, PlacementError
from collage_core.formats import CPU, Format
from collage_core.ir import Graph, Subgraph
from collage_core.ir.onnx_check import one_line
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.plugins import Registry, default_registry
from collage_core.runtime.executable import Executable
from collage_core.runtime.plan import Step, lay_out, schedule

__all__ = ["build"]


def build(
    graph: Graph,
    placement: Placement,
    registry: Registry | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Executable:
    """Build the executable of a placement of this (normalised) graph, in this process.

    Loads the vendors' libraries of the backends that the placement names. `progress(done, of)` is called
    after each step. PlacementError if the placement does not fit the graph, or asks a backend for what it
    does not offer; BackendError with the group's name if a kernel cannot be built, or if memory runs out.
    """
    try:
        return _built(graph, placement, registry or default_registry(), progress)
    except MemoryError as error:
        raise BackendError(f"out of memory: {error}".removesuffix(": ")) from None


def _built(
    graph: Graph, placement: Placement, registry: Registry, progress: Callable[[int, int], None] | None
) -> Executable:
    for backend in registry.available(placement.backends()):
        _prepare_environment(backend, placement)
    devices = {name: registry.device(name) for name in (CPU, *placement.devices())}
    steps = schedule(graph, placement)
    for step in steps:
        _check_offered(graph, step, placement, registry)
    conversions: dict[tuple[object, Format, Format, str], Kernel] = {}
    kernels: list[Kernel | None] = []
    for i, step in enumerate(steps):
        kernels.append(_kernel(graph, step, placement, registry, conversions))
        if progress:
            progress(i + 1, len(steps))
    return Executable(graph, placement, lay_out(graph, steps, kernels), kernels, devices)


_environment: dict[str, str] = {}
"""Variables that libraries have been told in this process: they read them once, when they are loaded."""


def _prepare_environment(backend: Backend, placement: Placement) -> None:
    variables = backend.environment(placement.target)
    if backend.info().kind is not BackendKind.REFERENCE:
        for name, value in variables.items():
            if _environment.setdefault(name, value) != value:
                raise BackendError(
                    f"{backend.name} needs {name}={value}, and libraries in this process run with "
                    f"{_environment[name]}: another number of threads needs a process of its own"
                )
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _check_offered(graph: Graph, step: Step, placement: Placement, registry: Registry) -> None:
    """PlacementError unless the backend would have proposed this itself: libraries crash on some of what they
    never offer, and a bundle can ask for anything.
    """
    what = step.what
    if what.backend == VIEW:
        return
    backend = registry.backend(what.backend)
    if step.device not in (*backend.info().devices, CPU):
        raise PlacementError(f"{step}: {what.backend} does not run on {step.device!r}")
    if isinstance(what, Group):
        refusal = backend.refusal(Subgraph(graph, what.nodes), what.variant, placement.target)
        if refusal is not None:
            raise PlacementError(f"{step}: {refusal}")
    elif not backend.converts(graph.type_of(what.value), what.source, what.destination, placement.target):
        raise PlacementError(f"{step}: it does not offer this conversion")


def _kernel(
    graph: Graph,
    step: Step,
    placement: Placement,
    registry: Registry,
    conversions: dict[tuple[object, Format, Format, str], Kernel],
) -> Kernel | None:
    what = step.what
    if what.backend == VIEW:
        return None
    backend = registry.backend(what.backend)
    try:
        if isinstance(what, Conversion):
            key = (graph.type_of(what.value), what.source, what.destination, what.backend)
            if key not in conversions:
                conversions[key] = backend.build_conversion(
                    key[0], what.source, what.destination, placement.target
                )
            return conversions[key]
        return backend.build(Subgraph(graph, what.nodes), what.variant, placement.target)
    except CollageError:
        raise
    except (
        Exception
    ) as error:  # a vendor's library may raise anything; the step's name is what a person needs
        raise BackendError(f"{step}: {type(error).__name__}: {one_line(error)}") from error
