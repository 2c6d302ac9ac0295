"""The hooks that this package implements."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Backend
from collage_core.plugins import hookimpl

__all__ = ["collage_backends"]


@hookimpl
def collage_backends() -> Sequence[Backend]:
    from collage_tvm.backend import TvmBackend
    from collage_tvm.cuda.backend import TvmCudaBackend

    return [TvmBackend(), TvmCudaBackend()]
