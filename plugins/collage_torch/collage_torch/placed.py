"""A graph that is placed: called with PyTorch's tensors, it answers with PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from collage_run.formats import Array

from collage_core import Optimization
from collage_core.runtime import build
from collage_torch.exporting import Exported, NotExportedError

__all__ = ["Placed", "array_of"]


def array_of(tensor: Any) -> Array:
    """Its memory, row-major; a copy where it is laid out otherwise."""
    return tensor.detach().resolve_neg().contiguous().numpy()  # type: ignore[no-any-return]


class Placed:
    """Inputs are copied into the executable's buffers, outputs are written into new tensors' memory, and
    copied where PyTorch's own are not row-major. What is answered twice is one tensor. For one thread at a
    time.
    """

    def __init__(self, exported: Exported, found: Optimization) -> None:
        """NotExportedError where the model answers otherwise than the graph that it was exported from."""
        self._executable = build(found.graph, found.placement)
        self._inputs = tuple(exported.inputs)
        self._answers = [None if output is None else output.name for output in exported.outputs]
        self._outputs = {o.name: o for o in exported.outputs if o is not None}
        self._turned = [
            name
            for name, o in self._outputs.items()
            if o.strides != torch.empty(o.shape, device="meta").stride()
        ]
        for name, output in self._outputs.items():
            type = self._executable.outputs[name]
            if (type.shape, type.dtype) != (output.shape, str(output.dtype).removeprefix("torch.")):
                asked = f"{output.dtype}{list(output.shape)}"
                raise NotExportedError(f"{name!r} is exported as {type}, and PyTorch answers {asked}")

    def __call__(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        inputs = {name: array_of(x) for name, x in zip(self._inputs, tensors, strict=True)}
        answers = {name: torch.empty(o.shape, dtype=o.dtype) for name, o in self._outputs.items()}
        self._executable.run(inputs, {name: answer.numpy() for name, answer in answers.items()})
        for name in self._turned:
            output = self._outputs[name]
            turned = torch.empty_strided(output.shape, output.strides, dtype=output.dtype)
            answers[name] = turned.copy_(answers[name])
        return tuple(None if name is None else answers[name] for name in self._answers)
