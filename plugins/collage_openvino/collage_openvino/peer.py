"""OpenVINO's CPU plugin as a whole runtime, at its own best settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from collage_core.backend import Peer, PeerInfo, PeerSession
from collage_core.device import Target
from collage_core.errors import BackendError, InputError
from collage_core.formats import Array, empty, plain
from collage_openvino import __version__
from collage_openvino.library import DISTRIBUTION, Port, find_library, library_version, load
from collage_openvino.settings import properties

__all__ = ["OpenvinoPeer", "OpenvinoSession"]


class OpenvinoPeer(Peer):
    """One stream for latency, the target's threads, fp32, fixed input and output buffers."""

    name = "openvino"

    def info(self) -> PeerInfo:
        if find_library() is None:
            return PeerInfo(self.name, __version__, None, f"{DISTRIBUTION} is not installed")
        settings = {
            "device": "CPU",
            **properties(Target("cpu")),
            "INFERENCE_NUM_THREADS": "as the target",
            "EXCLUSIVE_ASYNC_REQUESTS": "where the target has all processors",
            "tensors": "fixed buffers",
        }
        return PeerInfo(self.name, __version__, library_version(), settings=settings)

    def load(self, model: Path, target: Target) -> PeerSession:
        """BackendError, with what the library says, if it cannot load or run the model."""
        return OpenvinoSession(model, target)


class OpenvinoSession(PeerSession):
    """One model and its buffers, which `run` reads and writes in place."""

    def __init__(self, model: Path, target: Target) -> None:
        try:
            graph = onnx.load(model, load_external_data=False).graph
            compiled = load().compiled(model, properties(target))
            constants = {t.name for t in graph.initializer}
            inputs = [v.name for v in graph.input if v.name not in constants]
            self._inputs = _buffers(inputs, compiled.inputs())
            self._outputs = _buffers([v.name for v in graph.output], compiled.outputs())
        except Exception as error:
            raise BackendError(f"openvino cannot load {model.name}: {error}") from error
        for array in self._inputs.values():
            array.fill(0)
        self._run = compiled.bind(list(self._inputs.values()), list(self._outputs.values()))

    def set_inputs(self, inputs: Mapping[str, Array]) -> None:
        if set(inputs) != set(self._inputs):
            raise InputError(f"inputs must be {sorted(self._inputs)}, not {sorted(inputs)}")
        for name, buffer in self._inputs.items():
            given = np.asarray(inputs[name])
            if (given.dtype, given.shape) != (buffer.dtype, buffer.shape):
                raise InputError(
                    f"input {name!r} must be {buffer.dtype}{list(buffer.shape)}, "
                    f"not {given.dtype}{list(given.shape)}"
                )
            np.copyto(buffer, given)

    def run(self) -> None:
        self._run()

    def outputs(self) -> dict[str, Array]:
        return {name: buffer.copy() for name, buffer in self._outputs.items()}


def _buffers(names: list[str], ports: list[Port]) -> dict[str, Array]:
    return {n: empty(p.shape, plain(p.dtype, p.shape)) for n, p in zip(names, ports, strict=True)}
