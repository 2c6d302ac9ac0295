"""ONNX's own node tests, whose expected outputs do not come from its evaluator, on ours: as they are, and as
the passes leave them.
"""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from collage_core.errors import ModelError
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise
from collage_core.ir.verify import require_static
from collage_core.reference import evaluate

NOT_TENSORS = re.compile("sequence|optional")
"""What the graph itself declines."""
NO_PLACEMENT = re.compile("holds texts|depends on values that are known only when the model runs")
"""What is declined before anything is measured: besides texts, Unique, and CenterCropPad as a function."""
RANDOM_OR_FOREIGN = re.compile("bernoulli|training_dropout|image_decoder")
"""Random numbers, and images for which the evaluator wants Pillow."""

TWO_ULPS = {"float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Two units in the last place: we round sums once, some of the expected outputs were rounded at each step."""


@functools.cache
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the cases overflow on purpose while they are made
        from onnx.backend.test.loader import load_model_tests

        return list(load_model_tests(kind="node"))


def array(data: Any) -> npt.NDArray[Any]:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else np.asarray(data)


def mismatch(case: Any) -> str | None:
    """What is wrong with our answers to one case."""
    try:
        graph = from_model(case.model)
    except ModelError as error:
        return None if is_told(error, NOT_TENSORS) else str(error)
    if (wrong := wrong_answer(case, graph)) is not None:
        return wrong
    placed = normalise(graph)
    try:
        require_static(placed)
    except ModelError as error:
        return None if is_told(error, NO_PLACEMENT) else str(error)
    return None if (wrong := wrong_answer(case, placed)) is None else f"after the passes: {wrong}"


def is_told(error: ModelError, reasons: re.Pattern[str]) -> bool:
    """Whether it says in one line which value or node is declined, for one of the reasons."""
    said = str(error)
    return bool(reasons.search(said)) and "\n" not in said and "'" in said


def wrong_answer(case: Any, graph: Graph) -> str | None:
    """What is wrong with the graph's answers; it may take the first of the case's inputs only."""
    for inputs, expected in case.data_sets:
        try:
            results = evaluate(graph, dict(zip(graph.inputs, map(array, inputs), strict=False)))
        except ModelError as error:
            return str(error)
        for want, got in zip(map(array, expected), results.values(), strict=True):
            if (got.dtype, got.shape) != (want.dtype, want.shape):
                return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
            rtol = max(case.rtol, TWO_ULPS.get(want.dtype.name, 0))
            if want.dtype.kind == "V":
                want, got = want.astype(np.float32), got.astype(np.float32)
            if want.dtype.kind in "fc":
                equal = np.allclose(got, want, rtol=rtol, atol=case.atol, equal_nan=True)
            else:
                equal = np.array_equal(got, want)
            if not equal:
                return "other numbers"
    return None


@pytest.mark.parametrize("expanded", [False, True], ids=["operators", "as functions"])
def test_node_cases(expanded: bool) -> None:
    chosen = [
        c for c in cases() if ("_expanded" in c.name) == expanded and not RANDOM_OR_FOREIGN.search(c.name)
    ]
    wrong = {c.name: why for c in chosen if (why := mismatch(c)) is not None}
    assert len(chosen) > 400
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


SIZED_BY_VALUES = {
    # The first input is the size.
    *("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range"),
    *("NonMaxSuppression", "NonZero", "Unique"),
    # As often as its input says.
    "Loop",
}


def with_constants(case: Any, first: int) -> onnx.ModelProto | None:
    """The model with constants for its inputs from the `first` on, as exporters write most of them, and no
    types of what it computes; None where not all that it takes and yields are tensors of numbers.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    ((inputs, expected), *others) = case.data_sets
    values = (*model.graph.input, *model.graph.output)
    if others or any(not v.type.HasField("tensor_type") for v in values):
        return None
    arrays = [array(a) for a in inputs]
    if any(a.dtype.kind in "OU" for a in (*arrays, *map(array, expected))):
        return None
    declared = list(model.graph.input)
    for info, data in list(zip(declared, arrays, strict=True))[first:]:
        model.graph.initializer.append(numpy_helper.from_array(data, info.name))
    del model.graph.input[first:], model.graph.value_info[:]
    for info in model.graph.output:
        info.ClearField("type")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_node_cases_with_constants(first: int) -> None:
    wrong: dict[str, str] = {}
    refused: set[str] = set()
    tried = 0
    for case in cases():
        model = None if RANDOM_OR_FOREIGN.search(case.name) else with_constants(case, first)
        if model is None:
            continue
        tried += 1
        try:
            graph = normalise(from_model(model))
            require_static(graph)
        except ModelError as error:
            if not is_told(error, NO_PLACEMENT):
                wrong[case.name] = str(error)
            elif "_expanded" not in case.name:
                refused.add(model.graph.node[-1].op_type)
            continue
        if (why := wrong_answer(case, graph)) is not None:
            wrong[case.name] = why
    assert tried > 1500
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
    assert refused == (SIZED_BY_VALUES if first else set())
