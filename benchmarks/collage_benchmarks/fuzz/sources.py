"""Where the models come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from collage_benchmarks.generator import NEWEST, OLDEST, example, graphs
from collage_core.costs.inputs import synthesise_inputs
from collage_core.formats import Array
from collage_core.ir import from_model

__all__ = ["Sample", "generate", "stored"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A model with an array for each of its inputs, and a name to find it again."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]

    @property
    def opset(self) -> int:
        return max(int(o.version) for o in self.model.opset_import if o.domain in ("", "ai.onnx"))

    @property
    def operators(self) -> list[str]:
        return [n.op_type for n in self.model.graph.node]


def generate(number: int) -> Sample:
    """The generator's model of that number; twenty at a time have one opset, for they are joined."""
    opset = OLDEST + number // 20 % (NEWEST - OLDEST + 1)
    case = example(graphs(opset), number)
    return Sample(f"generated-{number}", case.model, case.inputs)


def stored(folder: Path) -> Iterator[Sample]:
    """The ONNX files of a folder by name, with the inputs beside each (`.npz`), or made up."""
    for path in sorted(folder.glob("**/*.onnx")):
        model = onnx.load(str(path))
        beside = path.with_suffix(".npz")
        if beside.is_file():
            with np.load(beside) as arrays:
                inputs = dict(arrays)
        else:
            inputs = synthesise_inputs(from_model(model))
        yield Sample(str(path.relative_to(folder).with_suffix("")), model, inputs)
