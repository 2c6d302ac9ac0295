"""`python -m collage_benchmarks.architectures.exporting NAME`: one architecture, into the current folder.

With `--list` in place of a name: all titles by name, in JSON.

`NAME.onnx` by PyTorch's exporter (the one that is built on `torch.export`), and for each of its
sizes `NAME-SIZE.npz`: `given:INPUT` and `answer:OUTPUT` by the model's names, the answers PyTorch's own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from collage_benchmarks.architectures.architecture import ANSWER, GIVEN, Architecture
from collage_benchmarks.architectures.images import IMAGES
from collage_benchmarks.architectures.sequences import SEQUENCES
from collage_benchmarks.architectures.suppression import TRANSLATIONS

__all__ = ["main"]

_SEED = 0
_DEAD = 1e-6
"""Answers that differ by less."""


def main(arguments: Sequence[str] | None = None) -> int:
    (name,) = sys.argv[1:] if arguments is None else arguments
    known = {**IMAGES, **SEQUENCES}
    if name == "--list":
        print(json.dumps({n: a.title for n, a in known.items()}))
        return 0
    architecture = known[name]
    torch.manual_seed(_SEED)
    given = {size: architecture.inputs(size) for size in architecture.sizes}
    module = _settled(architecture.make(), given[architecture.sizes[0]])
    exported = torch.onnx.export(
        module,
        given[architecture.sizes[0]],
        dynamo=True,
        dynamic_shapes=_dynamic_shapes(architecture),
        custom_translation_table=TRANSLATIONS,
        verbose=False,
    )
    path = Path(f"{name}.onnx")
    exported.save(path)
    names = [v.name for v in exported.model.graph.inputs], [v.name for v in exported.model.graph.outputs]
    for size, tensors in given.items():
        with torch.inference_mode():
            answers = module(*tensors)
        answers = answers if isinstance(answers, tuple) else (answers,)
        if any(y.numel() > 1 and float(y.double().std()) < _DEAD for y in answers):
            raise SystemExit(f"{name} answers the same everywhere: nothing could be wrong")
        _save(f"{name}-{size}.npz", names, tensors, answers)
    return 0


def _settled(module: Any, inputs: Sequence[Any]) -> Any:
    """With statistics in batch normalisations as if it had been trained, lest values die out on the way."""
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    module.eval()
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        module(*inputs)
    return module.eval()


def _dynamic_shapes(architecture: Architecture) -> Any:
    """As the exporter takes them; None where nothing is open."""
    if not architecture.open_axes:
        return None
    names = {name for axes in architecture.open_axes for name in axes.values()}
    sizes = {name: torch.export.Dim(name) for name in names}
    return tuple({axis: sizes[name] for axis, name in axes.items()} for axes in architecture.open_axes)


def _save(
    path: str, names: tuple[list[str], list[str]], tensors: Sequence[Any], answers: Sequence[Any]
) -> None:
    inputs, outputs = names
    arrays = {GIVEN + name: x.numpy() for name, x in zip(inputs, tensors, strict=True)}
    arrays |= {ANSWER + name: y.numpy() for name, y in zip(outputs, answers, strict=True)}
    np.savez(path, **arrays)


if __name__ == "__main__":
    sys.exit(main())
