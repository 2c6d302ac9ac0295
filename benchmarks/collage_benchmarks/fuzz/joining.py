"""Many models as one: each keeps its nodes, which know nothing of the others'."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import compose, helper

from collage_benchmarks.fuzz.sources import Sample
from collage_core.formats import Array

__all__ = ["join", "part_of", "parts_named", "split"]


def join(samples: Sequence[Sample]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One model of several of one opset, and its inputs. The names of part i begin with `p<i>/`."""
    whole = helper.make_model(
        onnx.GraphProto(name="joined"),
        opset_imports=samples[0].model.opset_import,
        ir_version=max(s.model.ir_version for s in samples),
    )
    inputs: dict[str, Array] = {}
    for i, sample in enumerate(samples):
        part = compose.add_prefix(sample.model, _prefix(i)).graph
        whole.graph.node.extend(part.node)
        whole.graph.initializer.extend(part.initializer)
        whole.graph.input.extend(part.input)
        whole.graph.output.extend(part.output)
        whole.graph.value_info.extend(part.value_info)
        inputs.update({_prefix(i) + n: a for n, a in sample.inputs.items()})
    return whole, inputs


def part_of(name: str) -> int:
    """Which of the models a name in the joined one belongs to."""
    return int(name[1:].partition("/")[0])


def parts_named(text: str) -> set[int]:
    """The parts whose nodes or values a text names."""
    return {int(found) for found in re.findall(r"\bp(\d+)/", text)}


def split(answer: Mapping[str, Array], count: int) -> list[dict[str, Array]]:
    """The outputs of each part by its own names."""
    parts: list[dict[str, Array]] = [{} for _ in range(count)]
    for name, array in answer.items():
        parts[part_of(name)][name.partition("/")[2]] = array
    return parts


def _prefix(part: int) -> str:
    return f"p{part}/"
