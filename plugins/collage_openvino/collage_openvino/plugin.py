"""The entry point: what this package brings to Collage."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from collage_core.backend import Backend
from collage_core.peer import Peer
from collage_core.plugins import hookimpl
from collage_core.priors import Priors

__all__ = ["collage_backends", "collage_peers", "collage_priors"]


@hookimpl
def collage_backends() -> Sequence[Backend]:
    from collage_openvino.backend import OpenvinoBackend

    return [OpenvinoBackend()]


@hookimpl
def collage_peers() -> Sequence[Peer]:
    from collage_openvino.peer import OpenvinoPeer

    return [OpenvinoPeer()]


@hookimpl
def collage_priors() -> Sequence[Priors]:
    return Priors.read_all(files("collage_openvino") / "priors")
