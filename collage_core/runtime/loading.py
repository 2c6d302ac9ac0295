"""From a bundle on disk to what runs it, in this process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import call
from pathlib import Path

from collage_run import exported
from collage_run.executable import Executable
from collage_run.printable import printable

from collage_core.errors import BackendUnavailableError, BundleError, OtherTargetError
from collage_core.ir.row_axes import RowAxes
from collage_core.plugins import Registry, default_registry
from collage_core.runtime.build import build
from collage_core.runtime.bundle import Bundle, chosen, read_all, told_in
from collage_core.runtime.kept import KernelStore
from collage_core.runtime.origin import differences
from collage_core.runtime.profiles import Shapes
from collage_core.runtime.threads import OwnThreads, in_a_thread_that_ends, own_threads
from collage_core.serving import Serving
from collage_core.target import Target

__all__ = ["Loaded", "backends_of", "differences_here", "load", "load_profiles"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An executable of a bundle, the threads that are to run it, and the rows of inputs that may be padded to
    its shape (see `Bundle`).
    """

    executable: Executable
    threads: OwnThreads
    rows: RowAxes | None = None


def load(
    path: str | Path,
    registry: Registry | None = None,
    *,
    allow_code: bool = False,
    expect: str | None = None,
    threads: int | None = None,
    shapes: Shapes | None = None,
) -> Executable:
    """Read a bundle and build its executable in this process. shapes: see `read`.

    allow_code: run the machine code of an exported bundle, which may do anything; without it, and on another
    processor than it was exported on, its kernels are built anew, as those of all other bundles. expect: the
    digest that an exported bundle must have. threads: on so many each kernel runs; None: on as many as the
    placement was made for, with which it was measured.

    BundleError as from `read`, and if a backend of it is not here, or the processor lacks instructions that
    it was made for. Other versions, another processor that has them and another number of threads are
    warned of: the placement is right, but may not be the fastest.
    """

    def one(profiles: Sequence[Bundle]) -> list[Bundle]:
        return [chosen(profiles, path, shapes)]

    (loaded,) = _loaded(path, registry, allow_code, expect, threads, one, call)
    return loaded.executable


def load_profiles(
    path: str | Path, *, allow_code: bool = False, expect: str | None = None, threads: int | None = None
) -> list[Loaded]:
    """As `load`, all that a bundle has, without running a kernel in this thread. An exported one has one."""
    return _loaded(path, None, allow_code, expect, threads, list, in_a_thread_that_ends)


def backends_of(executables: Sequence[Executable]) -> list[str]:
    """Names of the backends that run something, in the order in which they first do."""
    names = (call.name.partition(":")[0] for one in executables for call in one.program.calls)
    return list(dict.fromkeys(names))


def _loaded(
    path: str | Path,
    registry: Registry | None,
    allow_code: bool,
    expect: str | None,
    threads: int | None,
    choose: Callable[[Sequence[Bundle]], list[Bundle]],
    build_in: Callable[[Callable[[], list[Executable]]], list[Executable]],
) -> list[Loaded]:
    """build_in: a thread for what runs kernels: weights are packed."""
    if threads is not None:
        Target(threads=threads)  # or it is no number of threads
    if allow_code and (expect is not None or exported.brings_code(path)):
        try:
            (executable,) = build_in(
                lambda: [exported.load(path, allow_code=True, expect=expect, threads=threads)]
            )
            rows, serving, made_for = told_in(path, executable, expect)
            return [Loaded(executable, _own_threads(serving, threads or made_for, made_for), rows)]
        except (OtherTargetError, BackendUnavailableError) as error:
            warnings.warn(printable(f"{error}: its kernels are built anew"), stacklevel=3)
    registry = registry or default_registry()
    profiles = choose(read_all(path, check_weights=True, expect=expect))
    told = [difference for profile in profiles for difference in differences_here(profile, path, registry)]
    target = profiles[0].placement.target
    made_for = target.threads
    if threads not in (None, made_for):
        told.append(f"{path}: measured on another number of threads: {made_for}, not {threads}")
        target = replace(target, threads=threads)
    for difference in dict.fromkeys(told):
        warnings.warn(printable(difference), stacklevel=3)
    placements = [replace(profile.placement, target=target) for profile in profiles]
    kept = KernelStore()
    executables = build_in(
        lambda: [
            build(profile.graph, placement, registry, kept=kept)
            for profile, placement in zip(profiles, placements, strict=True)
        ]
    )
    return [
        Loaded(executable, _own_threads(profile.serving, target.threads, made_for), profile.rows)
        for profile, executable in zip(profiles, executables, strict=True)
    ]


def _own_threads(serving: Serving | None, threads: int, made_for: int) -> OwnThreads:
    """On as many threads as it was made for, a bundle for throughput has no more calls beside each other."""
    if serving is None or threads != made_for:
        return own_threads(threads)
    return own_threads(threads, serving.sessions)


def differences_here(bundle: Bundle, path: str | Path, registry: Registry) -> list[str]:
    """What is not as it was where the bundle in `path` was made, a line each; BundleError if it cannot run
    here.
    """
    try:
        return [f"{path}: {d}" for d in differences(bundle.origin, bundle.placement, registry)]
    except (AttributeError, TypeError) as error:
        raise BundleError(f"{path}: its manifest is damaged ({error!r})") from None
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None
