"""The entry point: what this package brings to Collage."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Backend
from collage_core.plugins import hookimpl

__all__ = ["collage_backends"]


@hookimpl
def collage_backends() -> Sequence[Backend]:
    from collage_tensorrt.backend import TensorrtBackend

    return [TensorrtBackend()]
