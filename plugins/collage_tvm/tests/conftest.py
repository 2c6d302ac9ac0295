"""Models of a few nodes, run through the backend in every variant and compared with the reference
evaluator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_tvm.backend import TvmBackend
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage_core.backend import Variant
from collage_core.costs.check import compare
from collage_core.device import Target
from collage_core.errors import Refusal
from collage_core.formats import empty
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.operators import OPERATORS

sys.path.append(str(Path(__file__).parent / "support"))

# TVM reads its settings when it is loaded, which is before any test builds a kernel
for _name, _value in TvmBackend().environment(Target("cpu", 2)).items():
    os.environ.setdefault(_name, _value)

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    outputs: Sequence[str],
    constants: Arrays,
    opset: int = 20,
) -> onnx.ModelProto:
    def info(name: str, array: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    graph = helper.make_graph(
        list(nodes),
        "test",
        [info(n, a) for n, a in inputs.items()],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def group_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    outputs: Sequence[str] = ("o",),
    constants: Arrays | None = None,
    opset: int = 20,
) -> tuple[Graph, Subgraph, onnx.ModelProto]:
    model = model_of(nodes, inputs, outputs, constants or {}, opset)
    graph = from_model(model)
    return graph, Subgraph(graph, graph.all_nodes, outputs), model


def refusal_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    outputs: Sequence[str] = ("o",),
    constants: Arrays | None = None,
    opset: int = 20,
) -> Refusal:
    _, group, _ = group_of(nodes, inputs, outputs, constants, opset)
    answer = TvmBackend().variants(group, Target("cpu", 2))
    assert isinstance(answer, Refusal), f"{group} was accepted"
    return answer


def check_group(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    outputs: Sequence[str] = ("o",),
    constants: Arrays | None = None,
    *,
    opset: int = 20,
    threads: int = 2,
    measure: onnx.ModelProto | None = None,
) -> list[Variant]:
    """Every variant's error is within core's tolerance; the variants are returned.

    measure: a model that computes the same, where the reference evaluator lacks one of the operators.
    """
    graph, group, model = group_of(nodes, inputs, outputs, constants, opset)
    model = measure or model
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model, new_ops=list(OPERATORS)).run(list(outputs), dict(inputs))
    target = Target("cpu", threads)
    variants = TvmBackend().variants(group, target)
    assert not isinstance(variants, Refusal), str(variants)
    for variant in variants:
        kernel = TvmBackend().build(group, variant, target)
        given = []
        for name, format in zip(group.inputs, variant.inputs, strict=True):
            array = empty(graph.shape_of(name), format)
            array[...] = inputs[name]
            given.append(array)
        results = [
            empty(graph.shape_of(o), format) for o, format in zip(group.outputs, variant.outputs, strict=True)
        ]
        for r in results:
            r[...] = 101
        bound = kernel.bind(given, results, np.empty(0, np.uint8))
        assert not bound()
        for name, got, want in zip(outputs, results, expected, strict=True):
            _, wrong = compare(name, got, np.asarray(want))
            assert wrong is None, f"{wrong}: {group} {variant}"
            assert got.dtype == np.asarray(want).dtype
        for name, array in zip(group.inputs, given, strict=True):
            np.testing.assert_array_equal(array, inputs[name], err_msg="an input was written")
    return list(variants)


@pytest.fixture(scope="session")
def check() -> Callable[..., list[Variant]]:
    return check_group


@pytest.fixture(scope="session")
def refusal() -> Callable[..., Refusal]:
    return refusal_of


@pytest.fixture(scope="session")
def model() -> Callable[..., onnx.ModelProto]:
    return model_of


@pytest.fixture(scope="session")
def group() -> Callable[..., Any]:
    return group_of
