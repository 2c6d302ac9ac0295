"""Whether what is to take over answers as what it replaces does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from collage_core.costs.check import compare_all, standards
from collage_core.costs.inputs import synthesise_inputs
from collage_core.formats import Array
from collage_core.ir import Graph
from collage_core.runtime import Bundle, Executable
from collage_core.runtime.plan import rounded_on_the_way

__all__ = ["Answering", "disagreement", "tried"]


class Answering(Protocol):
    """What answers requests with an executable: `inference.Contexts`."""

    executable: Executable

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """A request. Returns what is valid of the outputs."""

    def close(self) -> None:
        """Let go of all."""


def tried(graph: Graph, answering: Answering) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs that are made up, and what it answers."""
    inputs = dict(synthesise_inputs(graph))
    return inputs, _answers(answering, inputs, list(answering.executable.outputs))


def disagreement(
    bundle: Bundle, answering: Answering, inputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> str | None:
    """Why it is wrong, held to what was answered before as placements are to the reference; None where it is
    right. bundle: what serves.
    """
    held_to = standards(bundle.graph, rounded_to=rounded_on_the_way(bundle.graph, bundle.placement))
    return compare_all(_answers(answering, inputs, list(expected)), expected, held_to).reason


def _answers(answering: Answering, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    types = answering.executable.buffers
    outputs = {name: np.empty(types[name].static_shape, np.dtype(types[name].dtype)) for name in names}
    return answering.run(inputs, outputs)
