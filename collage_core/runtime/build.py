"""Building: every group of a placement becomes a kernel of its backend."""

from __future__ import annotations

from collections.abc import Callable

from collage_run.environment import tell_libraries
from collage_run.executable import Executable

from collage_core.backend import Backend, BackendKind, Kernel, process_environment
from collage_core.errors import BackendError, CollageError, PlacementError
from collage_core.formats import CPU, Format
from collage_core.ir import Graph, Subgraph, TensorType
from collage_core.ir.onnx_check import one_line
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.plugins import Registry, default_registry
from collage_core.runtime.kept import KernelStore
from collage_core.runtime.plan import Step, lay_out, schedule

__all__ = ["build"]


def build(
    graph: Graph,
    placement: Placement,
    registry: Registry | None = None,
    progress: Callable[[int, int], None] | None = None,
    kept: KernelStore | None = None,
) -> Executable:
    """Build the executable of a placement of this (normalised) graph, in this process.

    Loads the vendors' libraries of the backends that the placement names. `progress(done, of)` tells after
    each step how many kernels are built. kept: where kernels that were built before are looked for, and
    these are kept.
    PlacementError if the placement does not fit the graph, or asks a backend for what it does not offer;
    BackendError with the group's name if a kernel cannot be built, or if memory runs out.
    """
    try:
        return _built(graph, placement, registry or default_registry(), progress, kept)
    except MemoryError as error:
        raise BackendError(f"out of memory: {error}".removesuffix(": ")) from None


def _built(
    graph: Graph,
    placement: Placement,
    registry: Registry,
    progress: Callable[[int, int], None] | None,
    kept: KernelStore | None,
) -> Executable:
    libraries = [
        b for b in registry.available(placement.backends()) if b.info().kind is not BackendKind.REFERENCE
    ]
    tell_libraries(process_environment(libraries, placement.target), " and ".join(b.name for b in libraries))
    devices = {name: registry.device(name) for name in (CPU, *placement.devices())}
    steps = schedule(graph, placement)
    for step in steps:
        _check_offered(graph, step, placement, registry)
    builder = _Builder(graph, placement, registry, kept)
    kernels: list[Kernel | None] = []
    built, count = 0, sum(not step.is_view for step in steps)
    for step in steps:
        kernels.append(None if step.is_view else builder.kernel(step))
        built += not step.is_view
        if progress:
            progress(built, count)
    return Executable(lay_out(graph, steps, kernels), [k for k in kernels if k is not None], devices)


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
    elif not backend.offers_conversion(
        graph.type_of(what.value), what.source, what.destination, placement.target
    ):
        raise PlacementError(f"{step}: it does not offer this conversion")


class _Builder:
    """Makes the kernels of one placement; equal conversions share one."""

    def __init__(
        self, graph: Graph, placement: Placement, registry: Registry, kept: KernelStore | None
    ) -> None:
        self._graph = graph
        self._target = placement.target
        self._registry = registry
        self._kept = kept
        self._conversions: dict[tuple[TensorType, Format, Format, str], Kernel] = {}

    def kernel(self, step: Step) -> Kernel:
        """Of a step that is no view. BackendError names it."""
        what = step.what
        backend = self._registry.backend(what.backend)
        try:
            return self._of_group(backend, what) if isinstance(what, Group) else self._of(backend, what)
        except CollageError:
            raise
        except Exception as error:  # a vendor's library may raise anything; a person needs the step's name
            raise BackendError(f"{step}: {type(error).__name__}: {one_line(error)}") from error

    def _of_group(self, backend: Backend, group: Group) -> Kernel:
        subgraph = Subgraph(self._graph, group.nodes)
        return self._kept_or(
            backend,
            lambda kept: kept.key_of(backend, subgraph, group.variant, self._target),
            lambda: backend.build(subgraph, group.variant, self._target),
        )

    def _of(self, backend: Backend, conversion: Conversion) -> Kernel:
        type = self._graph.type_of(conversion.value)
        asked = type, conversion.source, conversion.destination
        if (*asked, conversion.backend) not in self._conversions:
            self._conversions[*asked, conversion.backend] = self._kept_or(
                backend,
                lambda kept: kept.key_of_conversion(backend, *asked, self._target),
                lambda: backend.build_conversion(*asked, self._target),
            )
        return self._conversions[*asked, conversion.backend]

    def _kept_or(
        self, backend: Backend, key_of: Callable[[KernelStore], str | None], build: Callable[[], Kernel]
    ) -> Kernel:
        key = None if self._kept is None else key_of(self._kept)
        if self._kept is None or key is None:
            return build()
        if (kernel := self._kept.restored(key)) is None:
            kernel = build()
            self._kept.keep(key, kernel)
        return kernel
