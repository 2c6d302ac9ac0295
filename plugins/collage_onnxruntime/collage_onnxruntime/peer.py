"""ONNX Runtime's CPU provider, at its own best settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from collage_core.errors import BackendError
from collage_core.graph_library import BufferedPeerSession
from collage_core.ir import TensorType
from collage_core.peer import Peer, PeerInfo, PeerSession
from collage_core.target import Target
from collage_onnxruntime import __version__
from collage_onnxruntime.session import (
    DISTRIBUTION,
    NOTHING_ELSE,
    Setting,
    Waiting,
    bind,
    library_version,
    open_session,
)

__all__ = ["OnnxRuntimePeer", "OnnxRuntimeSession", "info_with"]

_DTYPES = {
    "bool": "bool",
    "double": "float64",
    "float": "float32",
    "float16": "float16",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class OnnxRuntimePeer(Peer):
    """All graph optimisations, sequential execution, the target's threads, fixed input and output buffers."""

    name = "onnxruntime"

    def info(self) -> PeerInfo:
        settings = {
            "provider": "CPUExecutionProvider",
            "graph_optimization_level": "all",
            "execution_mode": "sequential",
            "intra_op_num_threads": "as the target",
            "inter_op_num_threads": "1",
            "session.intra_op.allow_spinning": "1",
            "io_binding": "fixed buffers",
        }
        return info_with(self.name, settings)

    def load(self, model: Path, target: Target) -> PeerSession:
        """BackendError, with what the library says, if it cannot load or run the model."""
        return OnnxRuntimeSession(model, target)


class OnnxRuntimeSession(BufferedPeerSession):
    """One model on buffers of its own.

    Its threads spin, which is the library's default and its best: a contender is stopped while it is not its
    turn, so they spin into nobody's time. settings: see `open_session`.
    """

    def __init__(self, model: Path, target: Target, settings: Mapping[str, Setting] = NOTHING_ELSE) -> None:
        try:
            session = open_session(model, target.threads, Waiting.SPIN, settings=settings)
        except BackendError as error:
            raise BackendError(f"cannot load {model.name}: {error}") from error
        inputs, outputs = _types(session.get_inputs()), _types(session.get_outputs())
        super().__init__(inputs, outputs, partial(bind, session))


def info_with(name: str, settings: Mapping[str, str]) -> PeerInfo:
    """What is told of the library in one of its roles, with these settings where it is installed."""
    library = library_version()
    if library is None:
        return PeerInfo(name, __version__, None, f"the package {DISTRIBUTION} is not installed")
    return PeerInfo(name, __version__, library, settings=settings)


def _types(infos: Sequence[Any]) -> dict[str, TensorType]:
    result: dict[str, TensorType] = {}
    for info in infos:
        kind = info.type.removeprefix("tensor(").removesuffix(")")
        if kind not in _DTYPES:
            raise BackendError(f"{info.name!r} is a {info.type}, for which there is no buffer")
        for size in info.shape:
            if not isinstance(size, int):
                raise BackendError(f"dimension {size!r} of {info.name!r} is not known")
        result[info.name] = TensorType(_DTYPES[kind], tuple(info.shape))
    return result
