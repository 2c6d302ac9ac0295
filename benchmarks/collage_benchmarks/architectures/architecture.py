"""What an architecture is: a module, what it is given, and which of its axes are open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ANSWER", "GIVEN", "Architecture"]

GIVEN, ANSWER = "given:", "answer:"
"""Before the names of inputs and outputs, in the files of samples."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One network with seeded weights.

    make: the `torch.nn.Module`, which is called with `inputs(size)`: tensors, in the order of `forward`.
    sizes: of the open axes, in turn. It is exported with the first, which is not 1 where something is open:
    PyTorch would take that for a number that is always 1. open_axes: of each input, the names of its open
    axes, by axis; equal names are equal sizes. Nothing is open where it is empty.
    """

    title: str
    make: Callable[[], Any]
    inputs: Callable[[int], tuple[Any, ...]]
    sizes: Sequence[int] = (1,)
    open_axes: Sequence[Mapping[int, str]] = ()
