"""A bundle opened slice by slice, so that others can go on between two of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from collage_run.archives import ARCHIVE
from collage_run.files import open_regular

from collage_core import clock
from collage_core.background.options import Background
from collage_core.errors import CollageError
from collage_core.runtime import Bundle, Executable, build, read
from collage_core.runtime.bundle import read_profiles
from collage_core.runtime.kept import KernelStore

__all__ = ["is_bundle", "longest_slice_s", "opened", "require_one"]


def is_bundle(path: Path) -> bool:
    """Whether a file is one, by how it begins; CollageError where it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(len(ARCHIVE)) == ARCHIVE
    except OSError as error:
        raise CollageError(f"{path}: {error.strerror or error}") from None


def require_one(source: Path, options: Background) -> Bundle:
    """The bundle in a file; CollageError where it cannot be improved while it answers."""
    if options.shapes is not None:
        raise CollageError(f"{source} has its shapes; others are given with a model")
    first, *others = read_profiles(source)
    if others or first.rows is not None:
        raise CollageError(f"{source} is for several shapes; in the background one is optimised")
    if first.serving is not None:
        raise CollageError(f"{source} was made for throughput, and in the background latency counts")
    return first


def opened(
    path: str | Path, between: Callable[[], None], digest: str | None = None
) -> tuple[Bundle, Executable]:
    """What is in a file, and its executable. between: called when it is read, and after each kernel. digest:
    of the placement that it is to hold; CollageError where it holds another one.
    """
    bundle = read(path, check_weights=True)
    if digest is not None and bundle.placement.digest != digest:
        raise CollageError(f"{path} holds a better one by now")
    between()
    executable = build(
        bundle.graph, bundle.placement, progress=lambda done, of: between(), kept=KernelStore()
    )
    return bundle, executable


def longest_slice_s(path: str | Path) -> float:
    """Seconds of the longest stretch between two calls of `between`, first run included. In a process in
    which no library is loaded yet.
    """
    begun_s, longest_s = clock.monotonic(), 0.0

    def between() -> None:
        nonlocal begun_s, longest_s
        now_s = clock.monotonic()
        begun_s, longest_s = now_s, max(longest_s, now_s - begun_s)

    _, executable = opened(path, between)
    executable.warm_up()
    between()
    return longest_s
