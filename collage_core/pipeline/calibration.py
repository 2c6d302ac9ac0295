"""The inputs that a model is tried on: those that something is chosen by, and those held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage_core.costs.inputs import synthesise_inputs
from collage_core.costs.roofline import work_of
from collage_core.errors import InputError
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph

__all__ = ["Samples", "made_up", "samples_of"]

_MOST, _FEWEST = 16, 4
"""Samples that are made up: from fewer nobody can say what others do, but the reference has to run each."""
_FLOPS = 10**12
"""In all of them. The reference takes half a minute for that, about."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs by name. chosen_by: what values are recorded and errors weighed with. held_out: what decides.
    is_made_up: whether nobody gave them.
    """

    chosen_by: Mapping[str, Array]
    held_out: Sequence[Mapping[str, Array]]
    is_made_up: bool


def made_up(graph: Graph, inputs: Mapping[str, Array] | None) -> Samples:
    """Without a person's own. inputs: what is chosen by; made up, too, where None. Held out are sixteen, or
    fewer of a graph of which each takes the reference seconds: four at least.
    """
    first = synthesise_inputs(graph) if inputs is None else inputs
    flops = max(1, work_of(Subgraph(graph, graph.all_nodes)).flops)
    count = min(_MOST, max(_FEWEST, _FLOPS // flops))
    return Samples(first, [synthesise_inputs(graph, seed) for seed in range(1, count + 1)], True)


def samples_of(graph: Graph, arrays: Mapping[str, Array]) -> Samples:
    """A person's own: for each input of the graph an array of its shape, with one more axis in front, along
    which the samples lie. The first is chosen by, the others are held out.

    InputError where an input is missing, unknown or of another shape or dtype, where there is but one sample,
    or where all are the same.
    """
    names = list(graph.variable_inputs())
    if unknown := sorted(arrays.keys() - set(names)):
        raise InputError(f"calibration: the model has no input {unknown[0]!r}; it has {', '.join(names)}")
    counts = {}
    for name in names:
        type = graph.type_of(name)
        if name not in arrays:
            raise InputError(f"calibration: input {name!r} is missing")
        array = arrays[name]
        if not isinstance(array, np.ndarray):
            raise InputError(f"calibration: {name!r} is no array")
        if str(array.dtype) != type.dtype or array.shape[1:] != type.static_shape or array.ndim == 0:
            wanted = ", ".join(map(str, ("samples", *type.static_shape)))
            raise InputError(
                f"calibration: {name!r} must be {type.dtype}[{wanted}], not {array.dtype}{list(array.shape)}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"calibration: {name!r} holds NaN or infinity")
        counts[name] = len(array)
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise InputError(f"calibration: as many samples are needed of each input, not {told}")
    count = next(iter(counts.values()), 0)
    if count < 2:
        raise InputError(f"calibration: {count} samples; at least 2 are needed, one of them to be held out")
    if all((array == array[:1]).all() for array in arrays.values()):
        raise InputError("calibration: all samples are the same, and nothing is held out")
    samples = [{name: np.array(arrays[name][i], order="C") for name in names} for i in range(count)]
    return Samples(samples[0], samples[1:], False)
