"""Outputs whose shapes are known only when a model has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage_run.formats import Array
from collage_run.types import TensorType

__all__ = ["OpenOutput", "cut"]


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """Of an output whose shape hangs on the inputs' values. What is computed has the largest shape that it
    can have, with zeros behind what is valid.

    sizes: name of the output (int64, one element for each axis) that holds the shape of what is valid.
    type: as it is delivered, its open dimensions by name.
    """

    sizes: str
    type: TensorType


def cut(outputs: Mapping[str, Array], opened: Mapping[str, OpenOutput]) -> dict[str, Array]:
    """What is delivered of all that is computed: views of what is valid, and not their sizes."""
    hidden = {o.sizes for o in opened.values()}
    valid = {v: tuple(map(slice, outputs[o.sizes])) for v, o in opened.items()}
    return {v: a[valid[v]] if v in valid else a for v, a in outputs.items() if v not in hidden}
