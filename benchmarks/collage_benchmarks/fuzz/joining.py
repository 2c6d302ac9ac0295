"""Many models as one: each keeps its nodes, which know nothing of the others'."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from collage_benchmarks.fuzz.sources import Sample
from collage_core.formats import Array

__all__ = ["join", "parts_named", "split"]


def join(samples: Sequence[Sample]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One model of several of one opset, and its inputs. The names of part i begin with `p<i>/`."""
    whole = helper.make_model(
        onnx.GraphProto(name="joined"),
        opset_imports=samples[0].model.opset_import,
        ir_version=max(s.model.ir_version for s in samples),
    )
    inputs: dict[str, Array] = {}
    for i, sample in enumerate(samples):
        part = onnx.GraphProto()
        part.CopyFrom(sample.model.graph)
        _rename(part, _prefix(i))
        whole.graph.node.extend(part.node)
        whole.graph.initializer.extend(part.initializer)
        whole.graph.input.extend(part.input)
        whole.graph.output.extend(part.output)
        whole.graph.value_info.extend(part.value_info)
        inputs.update({_prefix(i) + n: a for n, a in sample.inputs.items()})
    return whole, inputs


def parts_named(text: str) -> set[int]:
    """The parts whose nodes or values a text names."""
    return {int(found) for found in re.findall(r"\bp(\d+)/", text)}


def split(answer: Mapping[str, Array], count: int) -> list[dict[str, Array]]:
    """The outputs of each part by its own names."""
    parts: list[dict[str, Array]] = [{} for _ in range(count)]
    for name, array in answer.items():
        part, _, own = name.partition("/")
        parts[int(part.removeprefix("p"))][own] = array
    return parts


def _prefix(part: int) -> str:
    return f"p{part}/"


def _rename(graph: onnx.GraphProto, prefix: str) -> None:
    """Put the prefix before every name. `onnx.compose` forgets those that only bodies read."""
    for named in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        named.name = prefix + named.name
    for node in graph.node:
        node.name = node.name and prefix + node.name
        for values in (node.input, node.output):
            values[:] = [v and prefix + v for v in values]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, prefix)
