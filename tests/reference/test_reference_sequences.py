"""Sequences and optionals, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from control_flow_answers import assert_same, onnxruntime_answers

from collage_core.ir import from_model
from collage_core.reference import evaluate

_JOIN = "ConcatFromSequence <axis = 0>"
_LINES = {
    "inserted": "s = SequenceConstruct (a, b) t = SequenceInsert (s, c, k) y = {JOIN} (t)",
    "inserted last": "s = SequenceConstruct (a, b) t = SequenceInsert (s, c) y = {JOIN} (t)",
    "inserted first": "s = SequenceEmpty () t = SequenceInsert (s, c) y = SequenceAt (t, zero)",
    "erased": "s = SequenceConstruct (a, b, c) t = SequenceErase (s, k) y = {JOIN} (t)",
    "erased last": "s = SequenceConstruct (a, b, c) t = SequenceErase (s) y = {JOIN} (t)",
    "chosen": "s = SequenceConstruct (a, b, c) y = SequenceAt (s, k)",
    "joined along a new axis": "s = SequenceConstruct (a, a) "
    "y = ConcatFromSequence <axis = -1, new_axis = 1> (s)",
    "counted": "s = SequenceConstruct (a, b) n = SequenceLength (s) y = Cast <to = 1> (n)",
    "optional": "o = Optional (a) h = OptionalHasElement (o) g = OptionalGetElement (o) f = Cast <to = 1> (h)"
    " y = Add (f, g)",
    "optional sequence": "s = SequenceConstruct (a, b) o = Optional (s) g = OptionalGetElement (o)"
    " y = {JOIN} (g)",
    "carried through a loop": """s = SequenceConstruct (a) t = Loop (three, go, s) <body = l (int64 i, bool c,
        seq(float[n,2]) u) => (bool d, seq(float[n,2]) v) { d = Identity (c) v = SequenceInsert (u, b) }>
        y = {JOIN} (t)""",
}


@pytest.mark.parametrize("k", [-2, 0, 1])
@pytest.mark.parametrize("what", _LINES)
def test_sequences_are_as_onnx_says(what: str, k: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[1,2] a, float[2,2] b, float[3,2] c) => (float[] y) <int64 k = {{{k}}}, int64 zero = {{0}},
        int64 three = {{3}}, bool go = {{1}}> {{ {_LINES[what].replace("{JOIN}", _JOIN)} }}""")
    model.graph.output[0].ClearField("type")
    inputs = {v: np.random.default_rng(ord(v)).random((r, 2), np.float32) for r, v in enumerate("abc", 1)}
    assert_same(evaluate(from_model(model), inputs), onnxruntime_answers(model, inputs))


def test_an_optional_may_hold_nothing() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[2] x) => (bool y)
        { o = Optional <type: type_proto = float[2]> () y = OptionalHasElement (o) }""")
    assert evaluate(from_model(model), {"x": np.zeros(2, np.float32)})["y"].tolist() is False
