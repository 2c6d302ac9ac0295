"""The hooks that this package implements."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from collage_core.backend import Backend
from collage_core.plugins import hookimpl
from collage_core.priors import Priors

__all__ = ["collage_backends", "collage_priors"]


@hookimpl
def collage_backends() -> Sequence[Backend]:
    from collage_tvm.backend import TvmBackend
    from collage_tvm.cuda.backend import TvmCudaBackend

    return [TvmBackend(), TvmCudaBackend()]


@hookimpl
def collage_priors() -> Sequence[Priors]:
    return Priors.read_all(files("collage_tvm") / "priors")
