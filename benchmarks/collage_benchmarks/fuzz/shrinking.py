"""A failing model made small: nodes are cut off at its end and at its beginning while it goes on to fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx
from onnx import helper, numpy_helper

from collage_benchmarks.fuzz.sources import Sample
from collage_core.formats import Array

__all__ = ["shrink"]

Fails = Callable[[Sample], bool]


def shrink(sample: Sample, values: Mapping[str, Array], fails: Fails, tries: int = 24) -> Sample:
    """The smallest part of a model found to fail still, in at most `tries` attempts.

    values: what each intermediate value is, by name. Where the nodes that compute one are cut off, floats
    become inputs, and whole numbers constants, for shapes may depend on them.
    """
    left = [tries]

    def still(part: Sample | None) -> bool:
        if part is None or left[0] <= 0:
            return False
        left[0] -= 1
        return fails(part)

    best = sample
    for output in [o.name for o in sample.model.graph.output]:
        if len(sample.model.graph.output) > 1 and still(part := _part(sample, values, {output}, 0)):
            assert part is not None
            best = part
            break
    for at_end in (True, False):
        step = len(best.model.graph.node) // 2
        while step and left[0]:
            part = _without(best, values, step, at_end)
            if still(part):
                assert part is not None
                best = part
                step = min(step, len(best.model.graph.node) // 2)
            else:
                step //= 2
    return best


def _without(sample: Sample, values: Mapping[str, Array], count: int, at_end: bool) -> Sample | None:
    nodes = sample.model.graph.node
    if not at_end:
        return _part(sample, values, {o.name for o in sample.model.graph.output}, count)
    last = nodes[len(nodes) - count - 1]
    return _part(sample, values, {v for v in last.output if v}, 0)


def _part(sample: Sample, values: Mapping[str, Array], outputs: set[str], first: int) -> Sample | None:
    """What of the nodes from `first` on computes the outputs; None where nothing is left."""
    graph = sample.model.graph
    needed, kept = set(outputs), []
    for node in reversed(graph.node[first:]):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    kept.reverse()
    computed = {v for n in kept for v in n.output}
    if not kept or not outputs <= computed:
        return None
    inputs, constants = {}, {t.name: t for t in graph.initializer if t.name in needed}
    for name in sorted(needed - computed - set(constants) - {""}):
        array = sample.inputs.get(name, values.get(name))
        if array is None:
            return None
        if name in sample.inputs or array.dtype.kind == "f":
            inputs[name] = array
        else:
            constants[name] = numpy_helper.from_array(array, name)
    typed = {o.name: o for o in graph.output}
    if any(v not in typed and v not in values for v in outputs):
        return None
    part = helper.make_graph(
        kept,
        graph.name,
        [_info(n, a) for n, a in inputs.items()],
        [typed.get(v) or _info(v, values[v]) for v in sorted(outputs)],
        list(constants.values()),
    )
    model = helper.make_model(
        part, opset_imports=sample.model.opset_import, ir_version=sample.model.ir_version
    )
    return replace(sample, model=model, inputs=inputs)


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
