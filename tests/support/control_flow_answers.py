"""Graphs with If, Loop and Scan, and whether two answers of them are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import pytest
from control_flow_models import control_flow_model

from collage_core.ir import Graph, from_model
from collage_core.ir.verify import verify

__all__ = ["assert_same", "onnxruntime_answers", "read"]

Inputs = Mapping[str, npt.NDArray[Any]]


def onnxruntime_answers(model: onnx.ModelProto, inputs: Inputs) -> list[npt.NDArray[Any]]:
    """What ONNX Runtime says of the model as it is."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def assert_same(found: Mapping[str, npt.NDArray[Any]], expected: list[npt.NDArray[Any]]) -> None:
    """In number, order, type and shape, and but for rounding in value."""
    assert len(found) == len(expected)
    for got, want in zip(found.values(), expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def read(text: str, opset: int = 20) -> Graph:
    """The graph of a model in ONNX's text form, verified."""
    graph = from_model(control_flow_model(text, opset))
    verify(graph)
    return graph
