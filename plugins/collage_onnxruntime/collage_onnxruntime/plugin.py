"""The entry point: what this package brings to Collage."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.backend import Peer
from collage_core.plugins import hookimpl

__all__ = ["collage_peers"]


@hookimpl
def collage_peers() -> Sequence[Peer]:
    from collage_onnxruntime.peer import OnnxRuntimePeer

    return [OnnxRuntimePeer()]
