"""OpenVINO's CPU plugin as a whole runtime, at its own best settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from collage_core.errors import BackendError
from collage_core.graph_library import BufferedPeerSession
from collage_core.ir import TensorType
from collage_core.peer import Peer, PeerInfo, PeerSession
from collage_core.target import Target
from collage_openvino import __version__
from collage_openvino.library import DISTRIBUTION, Port, find_library, library_version, load
from collage_openvino.settings import NOTHING_ELSE, THROUGHPUT, properties

__all__ = ["OpenvinoPeer", "OpenvinoSession"]


class OpenvinoPeer(Peer):
    """One stream for latency, the target's threads, fp32, fixed input and output buffers."""

    name = "openvino"

    def info(self) -> PeerInfo:
        if find_library() is None:
            return PeerInfo(self.name, __version__, None, f"{DISTRIBUTION} is not installed")
        settings = {
            "device": "CPU",
            **properties(Target("cpu").threads),
            "INFERENCE_NUM_THREADS": "as the target",
            "EXCLUSIVE_ASYNC_REQUESTS": "where the target has all processors",
            "tensors": "fixed buffers",
        }
        return PeerInfo(self.name, __version__, library_version(), settings=settings)

    def load(self, model: Path, target: Target) -> PeerSession:
        """BackendError, with what the library says, if it cannot load or run the model."""
        return OpenvinoSession(model, target)

    def load_beside(self, model: Path, target: Target, count: int) -> Sequence[PeerSession]:
        """One compiled model, with as many streams as the library chooses for throughput."""
        first = OpenvinoSession(model, target, {**THROUGHPUT, "PERFORMANCE_HINT_NUM_REQUESTS": str(count)})
        return [first, *(first.another() for _ in range(count - 1))]


class OpenvinoSession(BufferedPeerSession):
    """One model on buffers of its own. settings: see `properties`."""

    def __init__(
        self, model: Path, target: Target, settings: Mapping[str, str | None] = NOTHING_ELSE
    ) -> None:
        try:
            graph = onnx.load(model, load_external_data=False).graph
            compiled = load().compiled(model, properties(target.threads, settings))
            constants = {t.name for t in graph.initializer}
            inputs = _types([v.name for v in graph.input if v.name not in constants], compiled.inputs())
            outputs = _types([v.name for v in graph.output], compiled.outputs())
        except Exception as error:
            raise BackendError(f"openvino cannot load {model.name}: {error}") from error
        super().__init__(inputs, outputs, lambda i, o: compiled.bind(list(i.values()), list(o.values())))


def _types(names: list[str], ports: list[Port]) -> dict[str, TensorType]:
    return {n: TensorType(p.dtype, p.shape) for n, p in zip(names, ports, strict=True)}
