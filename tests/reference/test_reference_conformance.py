"""ONNX's own node tests, whose expected outputs do not come from its evaluator, on ours: as they are, and as
the passes leave them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from collage_benchmarks.node_suite import cases
from collage_run.open_outputs import cut
from onnx import numpy_helper

from collage_core.errors import ModelError
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise
from collage_core.ir.static import require_static
from collage_core.reference import evaluate

EXCLUSIONS = json.loads((Path(__file__).parents[1] / "onnx_backend" / "exclusions.json").read_text())
DECLINED = {name: why for why, names in EXCLUSIONS["refused"].items() for name in names}
"""By case, what core says when it declines it: no tensors, or shapes that depend on data."""
RANDOM = frozenset(EXCLUSIONS["random"])

TWO_ULPS = {"float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Two units in the last place: we round sums once, some of the expected outputs were rounded at each step."""


def array(data: Any) -> npt.NDArray[Any]:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else np.asarray(data)


def mismatch(case: Any) -> str | None:
    """What is wrong with our answers to one case."""
    try:
        graph = from_model(case.model)
        if (wrong := wrong_answer(case, graph)) is not None:
            return wrong
        placed = normalise(graph)
        require_static(placed)
    except ModelError as error:
        return str(error)
    return None if (wrong := wrong_answer(case, placed)) is None else f"after the passes: {wrong}"


def wrong_answer(case: Any, graph: Graph) -> str | None:
    """What is wrong with the graph's answers; it may take the first of the case's inputs only."""
    for inputs, expected in case.data_sets:
        computed = evaluate(graph, dict(zip(graph.inputs, map(array, inputs), strict=False)))
        results = cut(computed, graph.open_outputs)
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
    """What core declines, it declines in one line that names a value or a node, and nothing else."""
    chosen = {n: c for n, c in cases().items() if ("_expanded" in n) == expanded and n not in RANDOM}
    assert len(chosen) > 400
    found = {name: why for name, case in chosen.items() if (why := mismatch(case)) is not None}
    declined = {n: w for n, w in found.items() if n in DECLINED and is_told(w, DECLINED[n])}
    wrong = {name: why for name, why in found.items() if name not in declined}
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
    assert declined.keys() == DECLINED.keys() & chosen.keys(), "declined no longer"


def is_told(said: str, why: str) -> bool:
    return why in said and "\n" not in said and "'" in said


SIZED_BY_VALUES = {
    # The first input is the size.
    *("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range"),
    # As often as its input says.
    "Loop",
}


def with_constants(case: Any, first: int) -> onnx.ModelProto | None:
    """The model with constants in place of its inputs from the `first` on, as exporters write most of them,
    and no types of what it computes; None where not all that it takes and yields are tensors of numbers.
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
    for name, case in cases().items():
        if name in RANDOM or name in DECLINED:
            continue
        model = with_constants(case, first)
        if model is None:
            continue
        tried += 1
        try:
            graph = normalise(from_model(model))
            require_static(graph)
        except ModelError as error:
            if not is_told(str(error), "depends on values that are known only when the model runs"):
                wrong[name] = str(error)
            elif "_expanded" not in name:
                refused.add(model.graph.node[-1].op_type)
            continue
        try:
            why = wrong_answer(case, graph)
        except ModelError as error:
            why = str(error)
        if why is not None:
            wrong[name] = why
    assert tried > 1500
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
    assert refused == (SIZED_BY_VALUES if first else set())
