"""A graph that is placed: called with PyTorch's tensors, it answers with PyTorch's tensors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from collage_run.formats import Array

from collage_core import Optimization
from collage_core.runtime import build
from collage_torch.exporting import Exported

__all__ = ["Placed", "array_of"]


def array_of(tensor: Any) -> Array:
    """Its memory, row-major; a copy where it is laid out otherwise."""
    return tensor.detach().contiguous().numpy()  # type: ignore[no-any-return]


class Placed:
    """Inputs are copied into the executable's buffers, outputs are written into new tensors' memory. Threads
    take turns.
    """

    def __init__(self, exported: Exported, found: Optimization) -> None:
        self._executable = build(found.graph, found.placement)
        self._alone = threading.Lock()
        self._inputs = tuple(exported.inputs)
        types = self._executable.outputs
        self._outputs = [
            None
            if name is None
            else (name, types[name].static_shape, getattr(torch, np.dtype(types[name].dtype).name))
            for name in exported.outputs
        ]

    def __call__(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        inputs = {name: array_of(x) for name, x in zip(self._inputs, tensors, strict=True)}
        answers = [
            None if output is None else torch.empty(output[1], dtype=output[2]) for output in self._outputs
        ]
        outputs = {
            output[0]: answer.numpy()
            for output, answer in zip(self._outputs, answers, strict=True)
            if output is not None and answer is not None
        }
        with self._alone:
            self._executable.run(inputs, outputs)
        return tuple(answers)
