"""The entry point: what this package brings to Collage."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from collage_core.backend import Backend
from collage_core.ir import Definition
from collage_core.peer import Peer
from collage_core.plugins import hookimpl
from collage_core.priors import Priors
from collage_core.quantizer import Quantizer

__all__ = ["collage_backends", "collage_definitions", "collage_peers", "collage_priors", "collage_quantizers"]


@hookimpl
def collage_backends() -> Sequence[Backend]:
    from collage_onnxruntime.backend import OnnxRuntimeBackend

    return [OnnxRuntimeBackend()]


@hookimpl
def collage_definitions() -> Sequence[Definition]:
    from collage_onnxruntime.definitions import definitions

    return definitions()


@hookimpl
def collage_peers() -> Sequence[Peer]:
    from collage_onnxruntime.peer import OnnxRuntimePeer

    return [OnnxRuntimePeer()]


@hookimpl
def collage_quantizers() -> Sequence[Quantizer]:
    from collage_onnxruntime.quantizer import OnnxRuntimeQuantizer

    return [OnnxRuntimeQuantizer()]


@hookimpl
def collage_priors() -> Sequence[Priors]:
    return Priors.read_all(files("collage_onnxruntime") / "priors")
