"""A second opinion on a model's answers: a whole runtime that shares nothing with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from collage_core.costs.check import compare, compare_all, standards
from collage_core.costs.recording import disturbed_values, reference_values
from collage_core.errors import DisagreementError, WorkerError
from collage_core.formats import Array
from collage_core.ir import MODEL_FILE, Graph, TensorType, Value, save_stored
from collage_core.measuring.progress import Progress
from collage_core.measuring.temporary import TemporaryFolder
from collage_core.peer import Peer
from collage_core.runtime.session import open_peer, save_arrays
from collage_core.target import Target
from collage_core.worker import Worker

__all__ = ["SecondOpinion", "second_opinion"]


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """A peer that answers what the reference does. error: max|difference| / max|reference|, the worst of the
    outputs.
    """

    peer: str
    library_version: str | None
    error: float


def second_opinion(
    original: Graph,
    inputs: Mapping[str, Array],
    peer: Peer,
    target: Target,
    progress: Progress,
    plugins: Sequence[str] = (),
) -> SecondOpinion:
    """Ask a peer what the model answers, as it was given, on `inputs`, and compare with the reference.

    plugins: modules that bring the peer, besides the installed ones. DisagreementError names the output, and
    the first node whose output differs as far as the peer tells. WorkerError where one of the two cannot run
    the model.
    """
    progress.phase(f"asking {peer.name} for a second opinion")
    folder = TemporaryFolder()
    try:
        return _Question(original, inputs, peer, target, folder.path, tuple(plugins)).asked()
    except WorkerError as error:
        raise WorkerError(f"no second opinion by {peer.name} is to be had: {error}") from error
    finally:
        folder.remove()


class _Question:
    def __init__(
        self,
        original: Graph,
        inputs: Mapping[str, Array],
        peer: Peer,
        target: Target,
        folder: Path,
        plugins: tuple[str, ...],
    ) -> None:
        self._original = original
        self._inputs = inputs
        self._peer = peer
        self._target = target
        self._folder = folder
        self._plugins = plugins

    def asked(self) -> SecondOpinion:
        graph = self._original
        save_stored(graph, self._folder / "given")
        expected = reference_values(self._folder / "given", self._inputs)
        held_to = standards(graph, answers=cache(partial(self._disturbed, graph.outputs)))
        difference = compare_all(self._answers(expected, "outputs"), expected, held_to)
        if difference.reason is not None:
            raise DisagreementError(
                f"{self._peer.name} answers something else than the reference: {difference.reason}"
                + self._where()
            )
        return SecondOpinion(self._peer.name, self._peer.info().library_version, difference.relative or 0.0)

    def _where(self) -> str:
        """The first node that the two differ about; "" where the peer does not hand its values out."""
        graph = self._original
        names = list(graph.intermediates())
        try:
            expected = reference_values(self._folder / "given", self._inputs, names)
            found = self._answers(expected, "values")
        except WorkerError:
            return ""
        held_to = standards(graph, answers=cache(partial(self._disturbed, names)))
        for node in graph.nodes:
            for name in filter(None, node.outputs):
                _, refusal = compare(name, found[name], expected[name], held_to.get(name))
                if refusal is not None:
                    return f"; first at node {node}: {refusal.reason}"
        return ""

    def _disturbed(self, names: Sequence[str], way: str) -> dict[str, Array]:
        return disturbed_values(self._folder / "given", self._inputs, way, names)

    def _answers(self, expected: Mapping[str, Array], name: str) -> dict[str, Array]:
        """What the peer answers for the values of `expected`, whose shapes it is told."""
        folder = self._folder / name
        save_stored(_returning(self._original, expected), folder)
        inputs_file = folder / "inputs.npz"
        save_arrays(inputs_file, self._inputs)
        arguments = self._peer.name, folder / MODEL_FILE, self._target, inputs_file
        with Worker(self._peer.environment(self._target), plugins=self._plugins) as worker:
            answers: dict[str, Array] = worker.call(_answer, *arguments)
        return answers


def _returning(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph with these values as its outputs, and their types as they turned out."""
    known = {
        name: Value(name, TensorType(a.dtype.name, a.shape), graph.values[name].kind)
        for name, a in values.items()
    }
    return graph.replace(values={**graph.values, **known}, outputs=list(values))


def _answer(name: str, model: Path, target: Target, inputs_file: Path) -> dict[str, Array]:
    session = open_peer(name, model, target, inputs_file)
    session.run()
    return session.outputs()
