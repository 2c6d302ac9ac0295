"""A compiled model as a kernel."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from collage_run.devices import Queue
from collage_run.formats import Array, Layout
from collage_run.kernel import Bound, Kernel, StoredKernel

from collage_openvino.library import CompiledModel, load
from collage_openvino.settings import properties

__all__ = ["WEIGHTS", "OpenvinoKernel", "restore", "stored"]

WEIGHTS = "weights.bin"
"""The file beside a model in which its large constants are."""
_KIND = "openvino"


class OpenvinoKernel(Kernel):
    """A compiled group. Its scratch memory is the library's own and belongs to the compiled model: calls of
    one kernel from several threads take turns.
    """

    def __init__(
        self,
        model: CompiledModel,
        inputs: Sequence[Layout],
        outputs: Sequence[Layout],
        stored: StoredKernel | None = None,
    ) -> None:
        """stored: what it can be restored from, where it is small; of others `stored_kernel` makes that."""
        self._model = model
        self._stored = stored
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return self._model.bind(_in_memory(inputs, self._inputs), _in_memory(outputs, self._outputs))

    def stored(self) -> StoredKernel | None:
        return self._stored


def stored(
    model: bytes,
    weights: Array,
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    threads: int,
    is_rounded: bool,
) -> StoredKernel:
    """weights: the bytes of the file of that name that `model` (ONNX) refers to. is_rounded: whether it is
    computed in bfloat16.
    """
    facts = {"inputs": [*inputs], "outputs": [*outputs], "threads": threads, "bfloat16": is_rounded}
    return StoredKernel(_KIND, facts, model, (weights,))


def restore(stored: StoredKernel) -> OpenvinoKernel:
    """The same again; the library compiles the model anew. BackendUnavailableError where it is not here."""
    library, facts = load(), stored.facts
    with tempfile.TemporaryDirectory(prefix="collage-openvino-") as folder:
        Path(folder, WEIGHTS).write_bytes(stored.arrays[0].data)
        path = Path(folder, "model.onnx")
        path.write_bytes(stored.code)
        model = library.compiled(path, properties(facts["threads"], is_rounded=facts.get("bfloat16", False)))
    inputs, outputs = ([tuple(layout) for layout in facts[kind]] for kind in ("inputs", "outputs"))
    return OpenvinoKernel(model, inputs, outputs)


def _in_memory(arrays: Sequence[Array], layouts: Sequence[Layout]) -> list[Array]:
    """The arrays with their dimensions in the order in which they lie in memory."""
    return [a.transpose(o) for a, o in zip(arrays, layouts, strict=True)]
