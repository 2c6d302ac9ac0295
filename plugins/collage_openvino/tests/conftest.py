"""Models of a few nodes, run through the backend in every variant and compared with the reference
evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx
import pytest
from collage_openvino.backend import OpenvinoBackend
from onnx import helper, numpy_helper

from collage_core.backend import Variant
from collage_core.costs.check import compare
from collage_core.device import Target
from collage_core.errors import Refusal
from collage_core.formats import Array, empty
from collage_core.ir import Subgraph, from_model
from collage_core.reference import evaluate

NOTHING = np.empty(0, np.uint8)


class MakeGroup(Protocol):
    def __call__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = ("o",),
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
    ) -> Subgraph: ...


class CheckGroup(Protocol):
    def __call__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = ("o",),
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
        threads: int = 2,
    ) -> list[Variant]: ...


def make_group(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str] = ("o",),
    constants: Mapping[str, Array] | None = None,
    opset: int = 20,
) -> Subgraph:
    def info(name: str, array: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    graph = from_model(
        helper.make_model(
            helper.make_graph(
                list(nodes),
                "test",
                [info(n, a) for n, a in inputs.items()],
                [onnx.ValueInfoProto(name=o) for o in outputs],
                [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
            ),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=10,
        )
    )
    return Subgraph(graph, graph.all_nodes, outputs)


def check_group(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str] = ("o",),
    constants: Mapping[str, Array] | None = None,
    opset: int = 20,
    threads: int = 2,
) -> list[Variant]:
    """Builds every variant and compares all that it yields, twice, with other numbers; returns the
    variants.
    """
    group, backend, target = (
        make_group(nodes, inputs, outputs, constants, opset),
        OpenvinoBackend(),
        Target("cpu", threads),
    )
    graph = group.graph
    assert backend.supported([group], target) == [None]
    variants = backend.variants(group, target)
    assert not isinstance(variants, Refusal), str(variants)
    for variant in variants:
        given = [empty(graph.shape_of(v), f) for v, f in zip(group.inputs, variant.inputs, strict=True)]
        found = [empty(graph.shape_of(v), f) for v, f in zip(outputs, variant.outputs, strict=True)]
        bound = backend.build(group, variant, target).bind(given, found, NOTHING)
        for round in range(2):
            values = {v: np.asarray(np.roll(a, round)) for v, a in inputs.items()}
            expected = evaluate(graph, values)
            for name, array in zip(group.inputs, given, strict=True):
                array[...] = values[name]
            for array in found:
                array[...] = 101
            assert not bound()
            for name, got in zip(outputs, found, strict=True):
                _, wrong = compare(name, got, expected[name])
                assert wrong is None, f"{wrong}: {group} {variant}"
            for name, array in zip(group.inputs, given, strict=True):
                np.testing.assert_array_equal(array, values[name], err_msg="an input was written")
    return list(variants)


@pytest.fixture(scope="session")
def backend() -> OpenvinoBackend:
    return OpenvinoBackend()


@pytest.fixture(scope="session")
def group() -> MakeGroup:
    return make_group


@pytest.fixture(scope="session")
def check() -> CheckGroup:
    return check_group
