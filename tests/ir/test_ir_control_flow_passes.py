"""If, Loop and Scan in passes: what these inline, fold, rename and keep."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx.parser
import pytest
from control_flow_answers import assert_same, onnxruntime_answers, read
from control_flow_models import CONTROL_FLOW, control_flow_model, inputs_of

from collage_core.errors import ModelError
from collage_core.ir import Graph, from_model, to_model
from collage_core.ir.passes import PASSES, normalise, run_passes
from collage_core.ir.verify import verify
from collage_core.reference import evaluate


def _pass(graph: Graph, name: str) -> Graph:
    return run_passes(graph, [next(p for p in PASSES if p.name == name)])


def _ops(graph: Graph) -> list[str]:
    return [n.op_type for n in graph.nodes]


def test_a_pass_may_rename_what_is_captured() -> None:
    """Even to a name that a body has for a value of its own."""
    text = """g (float[3] a, bool c) => (float[3] y) {
      t = Identity (a)
      y = If (c) <
        then_branch = p () => (z) { a = Exp (t)  z = Add (a, t) },
        else_branch = q () => (z) {
          z = If (c) < then_branch = r () => (u) { a = Neg (t)  u = Mul (a, t) },
                       else_branch = s () => (u) { u = Sin (t) } > } >
    }"""
    model = control_flow_model(text)
    graph = from_model(model)
    renamed = _pass(graph, "drop-identities")
    (node,) = renamed.nodes
    assert node.captured == {"t": "a", "c": "c"}
    written = to_model(renamed)
    onnx.checker.check_model(written, full_check=True)
    for inputs in inputs_of(model):
        a = inputs["a"]
        expected = a + np.exp(a) if inputs["c"] else np.sin(a)
        assert_same(evaluate(graph, inputs), [expected])
        assert_same(evaluate(renamed, inputs), [expected])
        assert_same({"y": expected}, onnxruntime_answers(written, inputs))


def test_a_lost_capture_is_blamed_on_the_pass() -> None:
    graph = read(CONTROL_FLOW["if"])
    nodes = [
        n if not n.captures else dataclasses.replace(n, inputs=n.formal_inputs, captures=())
        for n in graph.nodes
    ]
    with pytest.raises(ModelError, match="after a pass: a body of 'If_1' reads 'x', which it is not given"):
        verify(graph.replace(nodes=nodes), after="a pass")


@pytest.mark.parametrize("truth", [True, False])
def test_a_known_condition_leaves_the_branch_taken(truth: bool) -> None:
    """One that folding makes known, an If within the branch, and a branch that yields what it captures."""
    text = f"""g (float[3] x, bool d) => (float[3] y, float[3] z, float[3] w)
        <float[3] k = {{1.0, 2.0, 3.0}}> {{
      one = Constant <value_int = {int(truth)}> ()
      c = Cast <to = 9> (one)
      t = Exp (x)
      y, z = If (c) <
        then_branch = p () => (u, v) <float[3] k2 = {{4.0, 5.0, 6.0}}> {{
          t2 = Add (x, k2)
          u = If (c) < then_branch = r () => (o) {{ o = Mul (t, t2) }},
                       else_branch = s () => (o) {{ o = Neg (t2) }}>
          v = Identity (k) }},
        else_branch = q () => (t, x) {{}}>
      w = If (d) < then_branch = p () => (o) {{ o = Add (y, t) }},
                   else_branch = q () => (o) {{ t2 = Relu (z)  o = Sub (t2, y) }}> }}"""
    graph = read(text)
    inlined = _pass(graph, "inline-constant-if")
    assert _ops(inlined).count("If") == 1
    assert len({n.id for n in inlined.nodes}) == len(inlined.nodes)
    assert {n.id: n.name for n in inlined.nodes}.items() >= {
        n.id: n.name for n in graph.nodes if n.name in {m.name for m in inlined.nodes}
    }.items()
    normal = normalise(graph)
    onnx.checker.check_model(to_model(normal), full_check=True)
    for inputs in inputs_of(control_flow_model(text)):
        expected = evaluate(graph, inputs)
        for g in (inlined, normal):
            assert_same(evaluate(g, inputs), list(expected.values()))
        assert_same(expected, onnxruntime_answers(to_model(normal), inputs))
        x = inputs["x"]
        y = np.exp(x) * (x + np.array([4, 5, 6])) if truth else np.exp(x)
        np.testing.assert_allclose(expected["y"], y, rtol=1e-6)


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("stated", ["n", "1"])
def test_branches_of_two_ranks_are_not_held_to_the_rank_that_is_stated(
    truth: bool, known: bool, stated: str
) -> None:
    """PyTorch's exporter makes an If of `squeeze`, and states one branch's type: ONNX Runtime runs it."""
    cast, condition = f"c = Cast <to = 9> ({'one' if known else 'd'})", "bool d" if known else "int64 d"
    model = control_flow_model(f"""g (float[1] x, {condition}) => (float[{stated}] y, float[{stated}] z) {{
      one = Constant <value_int = {int(truth)}> ()
      {cast}
      zero = Constant <value_ints = [0]> ()
      t = Relu (x)
      y = If (c) < then_branch = p () => (u) {{ u = Squeeze (t, zero) }},
                   else_branch = q () => (v) {{ v = Identity (t) }}>
      z = Neg (y) }}""")
    graph = from_model(model)
    inputs = {"x": np.array([3.0], np.float32), "d": np.array(truth, bool if known else np.int64)}
    expected = onnxruntime_answers(model, inputs)
    assert [a.shape for a in expected] == 2 * [() if truth else (1,)]
    normal = normalise(graph)
    assert normal.type_of("y").is_static == normal.type_of("z").is_static == known
    for g in (graph, normal):
        assert_same(evaluate(g, inputs), expected)


def test_an_open_condition_changes_nothing() -> None:
    graph = read(CONTROL_FLOW["nested ifs"])
    assert _pass(graph, "inline-constant-if") is graph


def test_dead_code_keeps_what_bodies_read() -> None:
    graph = normalise(read(CONTROL_FLOW["if"]))
    assert _ops(graph) == ["Exp", "If", "Tanh"]


def test_an_unused_output_stays() -> None:
    """A body yields as many values as its node."""
    text = CONTROL_FLOW["if of two"].replace("=> (float[2,3] y, float[3] z)", "=> (float[3] z)")
    model = control_flow_model(text)
    graph = normalise(from_model(model))
    assert len(graph.nodes[0].outputs) == 2
    for inputs in inputs_of(model):
        assert_same(evaluate(graph, inputs), onnxruntime_answers(model, inputs))


def test_an_output_without_a_name_is_given_one() -> None:
    """ONNX Runtime demands it, unlike ONNX."""
    text = CONTROL_FLOW["if of two"].replace("=> (float[2,3] y, float[3] z)", "=> (float[3] z)")
    model = control_flow_model(text.replace("y, z =", '"", z ='))
    graph = normalise(from_model(model))
    assert graph.nodes[0].outputs == ("If_0.0", "z")
    for inputs in inputs_of(model):
        assert_same(evaluate(graph, inputs), onnxruntime_answers(to_model(graph), inputs))


def _constant_loop(trips: int, op: str = "Sin (s)") -> str:
    return f"""g (float[3] x) => (float[3] y) <int64 n = {{{trips}}}, float[3] k = {{1.0, 2.0, 3.0}}> {{
      z = Loop (n, "", k) <body = b (int64 i, bool c, float[3] s) => (c, r) {{ r = {op} }}>
      y = Add (x, z) }}"""


def test_what_depends_on_constants_only_is_folded_if_that_is_soon_done() -> None:
    assert _ops(normalise(read(_constant_loop(3)))) == ["Add"]
    folded = normalise(read(_constant_loop(3)))
    np.testing.assert_allclose(
        next(iter(folded.constants.values())), np.sin(np.sin(np.sin([1.0, 2.0, 3.0]))), rtol=1e-6
    )
    assert _ops(normalise(read(_constant_loop(10**9)))) == ["Loop", "Add"]
    assert _ops(normalise(read(_constant_loop(3, "RandomUniformLike (s)")))) == ["Loop", "Add"]


_OLD: dict[str, tuple[int, str, str]] = {
    "softmax of all that follows": (12, "a = Softmax (t)", "2,3,4"),
    "sum over an attribute": (12, "u = ReduceSum <axes = [1]> (x) a = Add (u, t)", "2,3,4"),
    "mean over an attribute": (12, "u = ReduceMean <axes = [1]> (x) a = Add (u, t)", "2,3,4"),
    "squeeze": (12, "u = Unsqueeze <axes = [0]> (x) s = Squeeze <axes = [0]> (u) a = Add (s, t)", "2,3,4"),
    "split": (12, "p, q = Split <axis = 2, split = [1, 3]> (x) a = Concat <axis = 2> (q, p)", "2,3,4"),
    "clip": (10, "a = Clip <min = 0.0, max = 0.5> (x)", "2,3,4"),
    "pad": (10, "a = Pad <pads = [0, 0, 0, 0, 0, 1]> (x)", "2,3,5"),
    "slice": (9, "a = Slice <starts = [0], ends = [2], axes = [1]> (x)", "2,2,4"),
    "topk": (9, "a, q = TopK <k = 2, axis = 2> (x)", "2,3,2"),
    "upsample": (8, "a = Upsample <scales = [1.0, 1.0, 2.0]> (t)", "2,3,8"),
    "gemm": (8, "f = Flatten <axis = 2> (x) a = Gemm (f, w, v)", "6,4"),
}


@pytest.mark.parametrize("name", _OLD)
@pytest.mark.parametrize("nested", [False, True])
def test_old_bodies_mean_the_same_at_the_new_opset(name: str, nested: bool) -> None:
    opset, body, shape = _OLD[name]
    if nested:
        branch = f"b () => (float[{shape}] a) {{ {body} }}"
        body = f"a = If (c) <then_branch = {branch}, else_branch = {branch}>"
    weights = ", ".join(str(k / 16) for k in range(16))
    model = control_flow_model(
        f"""g (float[2,3,4] x, bool c) => (float[{shape}] y)
            <float[4,4] w = {{{weights}}}, float[4] v = {{1.0, 2.0, 3.0, 4.0}}> {{
          t = Relu (x)
          y = If (c) <then_branch = p () => (float[{shape}] a) {{ {body} }},
                      else_branch = q () => (float[{shape}] a) {{ {body} }}> }}""",
        opset,
    )
    graph = _pass(from_model(model), "upgrade-opset")
    # What the converter changes the meaning of is mended outside bodies only.
    assert graph.opsets[""] == (opset if name == "upsample" else 20)
    onnx.checker.check_model(to_model(graph), full_check=True)
    for inputs in inputs_of(model):
        assert_same(evaluate(graph, inputs), onnxruntime_answers(model, inputs))


def test_a_scan_in_batches_stays_in_its_opset() -> None:
    text = """g (float[1,2] h, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
      y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] r, float[2] q) {
        r = Add (s, e)
        q = Identity (r) }> ("", h, x) }"""
    model = control_flow_model(text, 8)
    graph = normalise(from_model(model))
    assert graph.opsets[""] == 8
    for inputs in inputs_of(model):
        assert_same(evaluate(graph, inputs), onnxruntime_answers(model, inputs))
