"""A session as a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage_run.devices import Queue
from collage_run.errors import BackendUnavailableError
from collage_run.formats import Array, Layout
from collage_run.kernel import Bound, Kernel, StoredKernel

from collage_onnxruntime.session import DISTRIBUTION, Waiting, bind, library_version, open_session

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Model", "OnnxRuntimeKernel", "Port", "restore"]

_KIND = "onnxruntime"

Port = tuple[str, Layout]
"""What the session calls a value, and in which order its elements lie."""


class OnnxRuntimeKernel(Kernel):
    """A session, whose memory for intermediate values is its own and shared by all that is bound."""

    def __init__(
        self, session: onnxruntime.InferenceSession, inputs: Sequence[Port], outputs: Sequence[Port]
    ) -> None:
        self._session = session
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return bind(self._session, _stored(self._inputs, inputs), _stored(self._outputs, outputs))


@dataclass(frozen=True, slots=True)
class Model:
    """A serialised model, the data of the constants that are not inside it, and how it is run."""

    serialised: bytes
    constants: Mapping[str, Array]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    threads: int
    waiting: Waiting

    def opened(self) -> OnnxRuntimeKernel:
        """BackendError, with what the library says, if it cannot run it."""
        session = open_session(self.serialised, self.threads, self.waiting, self.constants)
        return OnnxRuntimeKernel(session, self.inputs, self.outputs)

    def stored(self) -> StoredKernel:
        facts = {
            "constants": [*self.constants],
            "inputs": self.inputs,
            "outputs": self.outputs,
            "threads": self.threads,
            "waiting": self.waiting.name,
        }
        return StoredKernel(_KIND, facts, self.serialised, tuple(self.constants.values()))


def restore(stored: StoredKernel) -> OnnxRuntimeKernel:
    """The same again; the library optimises the model anew. BackendUnavailableError where it is not here."""
    if library_version() is None:
        raise BackendUnavailableError(f"the package {DISTRIBUTION} is not installed")
    facts = stored.facts
    inputs, outputs = (
        tuple((name, tuple(layout)) for name, layout in facts[kind]) for kind in ("inputs", "outputs")
    )
    constants = dict(zip(facts["constants"], stored.arrays, strict=True))
    waiting = Waiting[facts["waiting"]]
    return Model(stored.code, constants, inputs, outputs, facts["threads"], waiting).opened()


def _stored(ports: Sequence[Port], arrays: Sequence[Array]) -> dict[str, Array]:
    """The arrays' memory, by name, as the dense row-major arrays that the session knows."""
    return {name: a.transpose(layout) for (name, layout), a in zip(ports, arrays, strict=True)}
