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
from onnx.reference import ReferenceEvaluator

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.operators import OPERATORS
from collage_core.target import Target
from collage_core.testing import check_group, make_group, make_model

sys.path.append(str(Path(__file__).parent / "support"))

# TVM reads its settings when it is loaded, which is before any test builds a kernel
for _name, _value in TvmBackend().environment(Target("cpu", 2)).items():
    os.environ.setdefault(_name, _value)

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


@pytest.fixture(scope="session")
def check() -> Callable[..., list[Variant]]:
    """Checks every variant against the reference evaluator on the model as it is written; core, which reads
    models and evaluates node by node, takes no part in the answers. The variants.

    measure: a model that computes the same, where the reference evaluator lacks one of the operators.
    """

    def run(
        nodes: Sequence[onnx.NodeProto],
        inputs: Arrays,
        outputs: Sequence[str] = ("o",),
        constants: Arrays | None = None,
        *,
        opset: int = 20,
        threads: int = 2,
        measure: onnx.ModelProto | None = None,
    ) -> list[Variant]:
        group = make_group(nodes, inputs, constants, outputs, opset=opset)
        model = measure or make_model(nodes, inputs, constants, outputs, opset=opset)
        with np.errstate(all="ignore"):
            answers = ReferenceEvaluator(model, new_ops=list(OPERATORS)).run(list(outputs), dict(inputs))
        expected = {v: np.asarray(a) for v, a in zip(outputs, answers, strict=True)}
        return list(check_group(TvmBackend(), group, inputs, Target("cpu", threads), expected=expected))

    return run


@pytest.fixture(scope="session")
def refusal() -> Callable[..., Refusal]:
    """What the backend says to a group that it declines."""

    def asked(
        nodes: Sequence[onnx.NodeProto],
        inputs: Arrays,
        outputs: Sequence[str] = ("o",),
        constants: Arrays | None = None,
    ) -> Refusal:
        group = make_group(nodes, inputs, constants, outputs)
        answer = TvmBackend().variants(group, Target("cpu", 2))
        assert isinstance(answer, Refusal), f"{group} was accepted"
        return answer

    return asked
