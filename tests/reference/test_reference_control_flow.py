"""Loop, Scan and If on the reference: ONNX's words, by hand and beside ONNX Runtime on random bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_core import normalise
from collage_core.ir import from_model
from collage_core.reference import evaluate

_Array = npt.NDArray[Any]


def _model(text: str, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')


def _answers(text: str, inputs: Mapping[str, _Array], opset: int = 20) -> list[_Array]:
    return list(evaluate(from_model(_model(text, opset)), inputs).values())


_COUNTING = """g (int64 n, bool keep, float[1] x) => (float[1] y, q) {{
  y, q = Loop ({trips}, {condition}, x) <body = b (int64 i, bool c, float[1] s) => (go, r, float[1] p) {{
    one = Constant <value_float = 1.0> ()
    limit = Constant <value_float = 3.0> ()
    axis = Constant <value_ints = [0]> ()
    r = Add (s, one)
    less = Less (r, limit)
    go = Squeeze (less, axis)
    f = Cast <to = 1> (i)
    p = Mul (r, f) }}> }}"""


@pytest.mark.parametrize(
    ("trips", "condition", "n", "keep", "times"),
    [
        ("n", '""', 5, True, 5),  # "(trip_count, ""): cond = ...; // ignored"
        ("n", "keep", 5, True, 3),
        ("n", "keep", 2, True, 2),
        ("n", "keep", 5, False, 0),
        ("n", "keep", 0, True, 0),
        ("n", '""', -1, True, 0),
        ('""', "keep", 9, True, 3),
        ('""', "keep", 9, False, 0),
    ],
)
def test_a_loop_ends_by_trips_and_condition(
    trips: str, condition: str, n: int, keep: bool, times: int
) -> None:
    inputs = {"n": np.array(n), "keep": np.array(keep), "x": np.zeros(1, np.float32)}
    text = _COUNTING.format(trips=trips, condition=condition)
    y, q = (
        _answers(text, inputs)
        if times
        else (*_answers(text.replace("(float[1] y, q)", "(float[1] y)"), inputs), None)
    )
    assert y == [times]
    if q is not None:
        np.testing.assert_array_equal(q, np.array([[k * (k + 1)] for k in range(times)], np.float32))


@pytest.mark.parametrize("shape", ["", "[1]", "[2,3]"])
def test_what_a_loop_gathers_is_stacked(shape: str) -> None:
    """Along a new axis, whatever its rank is; a Loop that never runs gathers nothing, of that shape."""
    for n in (3, 0):
        text = f"""g (float{shape} x) => (float{shape} y, q) <int64 n = {{{n}}}> {{
          y, q = Loop (n, "", x) <body = b (int64 i, bool c, float{shape} s) => (c, r, r) {{
            r = Add (s, s) }}> }}"""
        x = np.ones([int(d) for d in shape.strip("[]").split(",") if d], np.float32)
        y, q = _answers(text, {"x": x})
        np.testing.assert_array_equal(y, x * 2**n)
        assert (q.dtype.name, q.shape) == ("float32", (n, *x.shape))
        np.testing.assert_array_equal(q, np.array([x * 2 ** (k + 1) for k in range(n)]).reshape(q.shape))


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("prepend", [0, 1])
@pytest.mark.parametrize(("axis", "out"), [(0, 0), (1, 2), (-1, -1), (2, -2)])
def test_a_scan_takes_and_gathers_along_any_axis(backward: int, prepend: int, axis: int, out: int) -> None:
    shape = [2, 3, 4]
    rest = [d for k, d in enumerate(shape) if k != axis % 3]
    text = f"""g (float[2,3,4] x) => (y, z) {{
      h = Constant <value_float = 0.0> ()
      y, z = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}], scan_input_directions = [{backward}],
          scan_output_axes = [{out}], scan_output_directions = [{prepend}],
          body = b (s, e) => (r, q) {{
        m = ReduceMax <keepdims = 0> (e)
        r = Add (s, m)
        q = Add (e, r) }}> (h, x) }}"""
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    y, z = _answers(text, {"x": x})
    steps = np.moveaxis(x, axis, 0)
    steps = steps[::-1] if backward else steps
    total = np.cumsum(steps.max((1, 2)), dtype=np.float32)
    found = [e + t for e, t in zip(steps, total, strict=True)]
    expected = np.stack(found[::-1] if prepend else found, out)
    np.testing.assert_allclose(y, total[-1], rtol=1e-6)
    assert z.shape == expected.shape
    assert sorted(z.shape) == sorted([*rest, shape[axis]])
    np.testing.assert_allclose(z, expected, rtol=1e-5)


def test_a_scan_in_batches_ends_each_where_it_does() -> None:
    """Opset 8: what comes after the end of a sequence is "undefined"."""
    text = """g (int64[2] n, float[2,1] h, float[2,3,1] x) => (float[2,1] y, float[2,3,1] z) {
      y, z = Scan <num_scan_inputs = 1, directions = [1], body = b (float[1] s, float[1] e) => (r, q) {
        r = Add (s, e)
        q = Identity (r) }> (n, h, x) }"""
    x = np.array([[1, 2, 4], [8, 16, 32]], np.float32).reshape(2, 3, 1)
    inputs = {"n": np.array([3, 2]), "h": np.array([[0], [100]], np.float32), "x": x}
    y, z = _answers(text, inputs, 8)
    np.testing.assert_array_equal(y, [[7], [124]])
    np.testing.assert_array_equal(z[0], [[4], [6], [7]])
    np.testing.assert_array_equal(z[1, :2], [[116], [124]])


def test_a_scan_of_nothing() -> None:
    text = """g (float[3] h, float[0,2] x) => (float[3] y, float[0,3] z) {
      y, z = Scan <num_scan_inputs = 1, body = b (float[3] s, float[2] e) => (r, float[3] q) {
        r = Neg (s)
        q = Exp (s) }> (h, x) }"""
    h = np.ones(3, np.float32)
    y, z = _answers(text, {"h": h, "x": np.zeros((0, 2), np.float32)})
    np.testing.assert_array_equal(y, h)
    assert z.shape == (0, 3)


def test_our_operators_reach_the_bodies() -> None:
    """`onnx.reference` itself would take the softmax of opset 11 along the last axis."""
    text = """g (float[1,2,2] x, bool c) => (float[1,2,2] y) {
      y = If (c) < then_branch = p () => (z) { z = Softmax (x) },
                  else_branch = q () => (z) { z = Neg (x) }> }"""
    x = np.zeros((1, 2, 2), np.float32)
    (y,) = _answers(text, {"x": x, "c": np.array(True)}, 11)
    np.testing.assert_array_equal(y, np.full((1, 2, 2), 0.25))


_UNARY = ("Neg", "Abs", "Sin", "Tanh", "Relu", "Identity")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")


@st.composite
def _bodies(draw: st.DrawFn, reads: list[str], name: str, depth: int) -> tuple[str, list[str]]:
    """The statements of a body that reads these float[2,2] values, and what it computes."""
    lines: list[str] = []
    made: list[str] = []
    for k in range(draw(st.integers(1, 3))):
        value = f"{name}{k}"
        a, b = (draw(st.sampled_from([*reads, *made])) for _ in range(2))
        kind = draw(st.sampled_from(["one", "two", "if", "loop", "scan"] if depth else ["one", "two"]))
        if kind == "one":
            lines.append(f"{value} = {draw(st.sampled_from(_UNARY))} ({a})")
        elif kind == "two":
            lines.append(f"{value} = {draw(st.sampled_from(_BINARY))} ({a}, {b})")
        else:
            lines.append(draw(_control(kind, value, a, b, [*reads, *made], depth - 1)))
        made.append(value)
    return "\n".join(lines), made


@st.composite
def _control(draw: st.DrawFn, kind: str, value: str, a: str, b: str, reads: list[str], depth: int) -> str:
    def body(prefix: str, *own: str) -> tuple[str, str]:
        lines, made = draw(_bodies([*reads, *own], f"{value}{prefix}", depth))
        return lines, draw(st.sampled_from(made))

    if kind == "if":
        (then, t), (other, e) = body("t"), body("e")
        condition = draw(st.sampled_from(["c", "d"]))
        return f"""{value} = If ({condition}) <
          then_branch = {value}p () => (float[2,2] {t}) {{ {then} }},
          else_branch = {value}q () => (float[2,2] {e}) {{ {other} }}>"""
    if kind == "loop":
        s, i, k = f"{value}s", f"{value}i", f"{value}k"
        lines, r = body("b", s)
        limit, stop = draw(st.sampled_from([("n", '""'), ("n", "c"), ("n", "d")]))
        # Without a condition ONNX Runtime minds the one that the body yields.
        kept = [f"{k}1 = Identity ({k})"]
        asked = [*kept, f"{k}1 = Less ({i}, n)", f"{k}1 = Not ({k})"]
        goes_on = draw(st.sampled_from(kept if stop == '""' else asked))
        return f"""{value} = Loop ({limit}, {stop}, {a}) <body = {value}p
            (int64 {i}, bool {k}, float[2,2] {s}) => (bool {k}1, float[2,2] {r}) {{ {goes_on} {lines} }}>"""
    s, x = f"{value}s", f"{value}x"
    lines, r = body("b", s)
    axis, backward, out = (draw(st.integers(0, 1)) for _ in range(3))
    return f"""{value}l, {value}m = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}],
        scan_input_directions = [{backward}], scan_output_axes = [{out}], body = {value}p
        (float[2,2] {s}, float[2] {x}) => (float[2,2] {r}, float[2] {value}o) {{
          {lines}
          {value}f = Add ({x}, {r})
          {value}o = ReduceMax <keepdims = 0> ({value}f, first) }}> ({a}, {b})
      {value} = Add ({value}l, {value}m)"""


@st.composite
def _models(draw: st.DrawFn) -> onnx.ModelProto:
    lines, made = draw(_bodies(["x", "z", "w"], "v", 2))
    kind = draw(st.sampled_from(["if", "loop", "scan"]))
    last = draw(_control(kind, "y", made[-1], draw(st.sampled_from(made)), ["x", "w", *made], 1))
    return _model(f"""g (float[2,2] x, float[2,2] z, bool c, bool d, int64 n) => (float[2,2] y)
        <float[2,2] w = {{1.0, -2.0, 0.5, 3.0}}, int64[1] first = {{0}}> {{
      {lines}
      {last} }}""")


@settings(max_examples=40)
@given(_models(), st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 99))
def test_random_bodies_answer_as_onnxruntime_does(
    model: onnx.ModelProto, c: bool, d: bool, n: int, seed: int
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(seed)
    inputs = {
        "x": random.standard_normal((2, 2)).astype(np.float32),
        "z": random.standard_normal((2, 2)).astype(np.float32),
        "c": np.array(c),
        "d": np.array(d),
        "n": np.array(n),
    }
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    graph = from_model(model)
    for g in (graph, normalise(graph)):
        (found,) = evaluate(g, inputs).values()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
