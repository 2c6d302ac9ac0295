"""The reference against ONNX Runtime, over every operator; what they differ in is decided by ONNX's text.

The decisions are in docs/operators-decisions.json. Each is asked again here, by its smallest case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.defs
import pytest
from collage_benchmarks import generator
from decisions import BY_ID, DECISIONS, EXCUSES, excused
from hypothesis import HealthCheck, given, settings
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
from two_opinions import disagreement, one_node, original, reference, runtime, shown

from collage_core.operators import OPERATORS

MENDED = "reference mended"

FEW, MANY = 3, 100
"""Examples for each definition of an operator."""

NOT_GENERATED = {
    "control flow": "If Loop Scan",
    "no tensors": """ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt
        SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence""",
    "texts": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    "numbers that are drawn": "Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    "not from opset 13 to 23": "BitCast CumProd Scatter Upsample",
}


def stored(values: Any, dtype: str, shape: list[int] | None = None) -> npt.NDArray[Any]:
    """`shape` is stated where the values, none, do not tell."""
    array = np.asarray(values, dtype)
    return array if shape is None else array.reshape(shape)


def attribute(value: Any) -> Any:
    """Bodies are kept as ONNX's text."""
    return onnx.parser.parse_graph(value["graph"]) if isinstance(value, dict) else value


def case_of(decision: Mapping[str, Any]) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]]:
    example = decision["example"]
    inputs = [i and stored(**i) for i in example["inputs"]]
    return one_node(
        example["operator"],
        example["opset"],
        inputs,
        {name: attribute(value) for name, value in example["attributes"].items()},
        example["outputs"],
        example["constants"],
    )


def schema_text(name: str, version: int) -> str:
    """All that ONNX says about one version of an operator, its function included."""
    schema = onnx.defs.get_schema(name, version)
    parts = [schema.doc or ""]
    parts += [a.description for a in schema.attributes.values()]
    parts += [p.description for p in (*schema.inputs, *schema.outputs)]
    if body := schema.function_body:
        parts.append(onnx.printer.to_text(body))
    return " ".join(" ".join(parts).split())


@pytest.mark.parametrize("decision", DECISIONS, ids=list(BY_ID))
def test_what_was_decided_still_holds(decision: dict[str, Any]) -> None:
    model, inputs = case_of(decision)
    ours, theirs = reference(model, inputs), runtime(model, inputs)
    assert not isinstance(ours, str)
    assert shown(ours) == decision["reference"]
    assert shown(theirs) == decision["other"], theirs
    if decision["decision"] == MENDED:
        assert shown(ours) == shown(theirs)
        assert shown(original(model, inputs)) != shown(ours) or inferred_shape(model) != list(
            ours[0].shape
        ), "onnx is right by itself now: the decision and our version may go"
    else:
        assert shown(ours) != shown(theirs), "they agree now: the decision may go"


@pytest.mark.parametrize("decision", EXCUSES)
def test_what_is_excused_is_decided_and_differs(decision: str) -> None:
    """An excuse whose example is right by now, or that is not about it, fails."""
    assert BY_ID[decision]["decision"] != MENDED
    model, inputs = case_of(BY_ID[decision])
    assert excused(model, inputs)
    assert disagreement(model, inputs) is not None


def inferred_shape(model: onnx.ModelProto) -> list[int]:
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return [d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim]


@pytest.mark.parametrize("decision", DECISIONS, ids=list(BY_ID))
def test_decisions_are_onnxs_words(decision: dict[str, Any]) -> None:
    found = re.match(r"(\w+)-(\d+)", decision["source"])
    assert found
    text = schema_text(found[1], int(found[2]))
    for part in decision["sentence"].split("[...]"):
        assert " ".join(part.split()) in text


def test_every_operator_of_onnx_runtime_is_asked() -> None:
    known = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
    kernels = {
        k.op_name
        for k in get_all_opkernel_def()
        if k.provider == "CPUExecutionProvider" and not k.domain and k.op_name in known
    }
    left_out = {name for names in NOT_GENERATED.values() for name in names.split()}
    assert kernels - set(generator.operators(random=False)) == left_out


def ask(op: str, opset: int, examples: int) -> None:
    """Raise AssertionError, with the smallest case, where reference and ONNX Runtime differ."""

    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(generator.single(op, opset))
    def asked(case: generator.Case) -> None:
        if (why := disagreement(case.model, case.inputs)) is not None:
            assert excused(case.model, case.inputs), why

    asked()


@pytest.mark.parametrize("op", generator.operators(random=False))
def test_two_opinions(op: str) -> None:
    for opset in generator.opsets(op):
        ask(op, opset, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("op", generator.operators(random=False))
def test_two_opinions_at_length(op: str) -> None:
    for opset in generator.opsets(op):
        ask(op, opset, MANY)


def wrong(op: str) -> Callable[..., Any]:
    """What our version of an operator says, off by a tenth."""
    right: Callable[..., Any] = next(o for o in OPERATORS if o.__name__ == op)._run

    def run(*inputs: Any, **attributes: Any) -> Any:
        return tuple((r * 1.1).astype(r.dtype) for r in right(*inputs, **attributes))

    return run


@pytest.mark.parametrize("op", ["LpNormalization", "GlobalLpPool", "Conv"])
def test_a_wrong_reference_is_named(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next(o for o in OPERATORS if o.__name__ == op), "_run", wrong(op))
    with pytest.raises(AssertionError, match=rf"{op} at opset {generator.opsets(op)[0]}: output 0 has other"):
        ask(op, generator.opsets(op)[0], FEW)


def test_a_reference_without_absolute_values_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = next(o for o in OPERATORS if o.__name__ == "LpNormalization")

    def without_absolute(self: Any, x: Any, axis: int = -1, p: int = 2) -> tuple[Any]:
        norm = (x**p).sum(axis=axis, keepdims=True) ** (1 / p)
        return ((x / norm).astype(x.dtype),)

    monkeypatch.setattr(operator, "_run", without_absolute)
    model, inputs = case_of(BY_ID["lp-normalization-absolute"])
    assert disagreement(model, inputs) == (
        "LpNormalization at opset 22: output 0 has other numbers\n"
        "  reference: [0.5, -1, 1.5]\n"
        "  ONNX Runtime: [0.1667, -0.3333, 0.5]"
    )


def test_statistics_in_single_precision_are_no_more_precise() -> None:
    """Found by the nightly run: of doubles the two differ in the sixth digit, for both sum up in float32."""
    first, second = [1.41528621, 0.55629983, 0.05510405, -0.92879103], [-0.77326709, -1.834238]
    x = np.array([*first, *second, -1.6940787, -1.93162993])
    scale = np.array([-0.42879041, 1.42842053, 0.22798117, -1.86702554])
    bias = np.array([-1.68153, -0.80615514, -0.085271, -0.31973754])
    inputs = [x.reshape(2, 4, 1), scale, bias]
    for groups in (1, 2):
        model, given = one_node("GroupNormalization", 21, inputs, {"num_groups": groups})
        assert disagreement(model, given) is None
