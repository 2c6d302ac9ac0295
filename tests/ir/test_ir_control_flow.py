"""If, Loop and Scan in graphs: what is read of their bodies, what passes make of it, how it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import pytest
from control_flow_models import CONTROL_FLOW, control_flow_model, inputs_of

from collage_core.errors import ModelError
from collage_core.formats import channels_last
from collage_core.ir import (
    Graph,
    OpKind,
    Subgraph,
    bodies_of,
    from_model,
    load_model,
    load_stored,
    op_kind,
    save_stored,
    subgraph_model,
    to_model,
)
from collage_core.ir.passes import PASSES, normalise, run_passes
from collage_core.ir.verify import require_static, verify
from collage_core.reference import evaluate

Inputs = Mapping[str, npt.NDArray[Any]]


def _onnxruntime(model: onnx.ModelProto, inputs: Inputs) -> list[npt.NDArray[Any]]:
    """What ONNX Runtime says of the model as it is."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def _assert_same(found: Mapping[str, npt.NDArray[Any]], expected: list[npt.NDArray[Any]]) -> None:
    assert len(found) == len(expected)
    for got, want in zip(found.values(), expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def _read(text: str, opset: int = 20) -> Graph:
    graph = from_model(control_flow_model(text, opset))
    verify(graph)
    return graph


def _pass(graph: Graph, name: str) -> Graph:
    return run_passes(graph, [next(p for p in PASSES if p.name == name)])


def _ops(graph: Graph) -> list[str]:
    return [n.op_type for n in graph.nodes]


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_the_model_as_it_is_normalised_and_written_answers_the_same(name: str) -> None:
    """The judge is ONNX Runtime, on what we write: it refuses bodies that yield what they capture."""
    model = control_flow_model(CONTROL_FLOW[name])
    graph = from_model(model)
    verify(graph)
    require_static(graph)
    normal = normalise(graph)
    written = to_model(normal)
    onnx.checker.check_model(written, full_check=True)
    again = from_model(written)
    assert str(again) == str(normal)
    assert Subgraph(again, again.all_nodes).key == Subgraph(normal, normal.all_nodes).key
    for inputs in inputs_of(model):
        expected = _onnxruntime(written, inputs)
        for g in (graph, normal, again):
            _assert_same(evaluate(g, inputs), expected)
        if "captures" not in name and " in an if " not in name:
            _assert_same(evaluate(graph, inputs), _onnxruntime(model, inputs))


def test_what_bodies_capture_are_inputs_of_their_node() -> None:
    graph = _read(CONTROL_FLOW["nested ifs"])
    node = next(n for n in graph.nodes if n.op_type == "If")
    assert node.formal_inputs == ("c",)
    assert node.captures == ("d", "x", "w", "t") or set(node.captures) == {"x", "t", "d", "w"}
    assert node.inputs == (*node.formal_inputs, *node.captures)
    assert graph.consumers("t") == (node,)
    assert op_kind(graph, node) is OpKind.OPAQUE
    part = Subgraph(graph, [node.id])
    assert set(part.inputs) == {"c", "d", "x", "t"}
    assert part.constants == ("w",)


def test_an_absent_formal_input_keeps_its_place() -> None:
    node = _read(CONTROL_FLOW["while"]).node_named("Loop_0")
    assert node.formal_inputs == ("", "keep", "x")
    assert node.captured == {"limit": "limit"}


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
        _assert_same(evaluate(graph, inputs), [expected])
        _assert_same(evaluate(renamed, inputs), [expected])
        _assert_same({"y": expected}, _onnxruntime(written, inputs))


def test_a_lost_capture_is_blamed_on_the_pass() -> None:
    graph = _read(CONTROL_FLOW["if"])
    nodes = [
        n if not n.captures else dataclasses.replace(n, inputs=n.formal_inputs, captures=())
        for n in graph.nodes
    ]
    with pytest.raises(ModelError, match="after a pass: a body of 'If_1' reads 'x', which it is not given"):
        verify(graph.replace(nodes=nodes), after="a pass")


def _scaled(first: str, second: str, *, local: str = "a", factor: float = 2.0, body: str = "Add") -> str:
    return f"""g (float[3] x, float[3] z, bool c) => (float[3] y) {{
      y = If (c) <
        then_branch = p () => (o) {{
          k = Constant <value_float = {factor}> ()
          {local} = {body} ({first}, k)
          o = Sub ({local}, {second}) }},
        else_branch = q () => (o) {{ o = Neg ({first}) }}> }}"""


def _key(text: str) -> str:
    graph = from_model(control_flow_model(text))
    return Subgraph(graph, graph.all_nodes).key


def test_a_key_tells_bodies_apart_by_all_but_their_names() -> None:
    key = _key(_scaled("x", "z"))
    assert _key(_scaled("x", "z", local="other")) == key
    assert _key(_scaled("z", "x")) == key  # the same kernel, given the one for the other
    differing = [
        _key(_scaled("x", "x")),
        _key(_scaled("x", "z", factor=3.0)),
        _key(_scaled("x", "z", body="Mul")),
    ]
    assert len({key, *differing}) == 4


def test_a_key_tells_which_of_what_is_given_is_which() -> None:
    def key(order: str) -> str:
        return _key(f"""g (float[3] p, float[3] q) => (float[3] y, float[3] z) <int64 n = {{2}}> {{
          y, z = Loop (n, "", p, q) <body = b (int64 i, bool c, float[3] s, float[3] t) => (c, u, v) {{
            u = Sub ({order})
            v = Sub ({order}) }}> }}""")

    assert key("s, t") != key("t, s")


def test_between_images_a_group_may_be_channels_last() -> None:
    model = control_flow_model(CONTROL_FLOW["between images"])
    graph = from_model(model)
    part = Subgraph(graph, [n.id for n in graph.nodes if n.op_type == "If"])
    last = channels_last("float32", (1, 4, 6, 6))
    formats = {"c": graph.plain_format("c"), "a": last, "x": last}
    handed = subgraph_model(part, [formats[v] for v in part.inputs], [last])
    onnx.checker.check_model(handed, full_check=True)
    for inputs in inputs_of(model):
        values = evaluate(graph, inputs, keep=("a", "b", "c", "x"))
        stored = {v: np.ascontiguousarray(values[v].transpose(formats[v].layout)) for v in part.inputs}
        (found,) = _onnxruntime(handed, stored)
        np.testing.assert_allclose(found, values["b"].transpose(last.layout), rtol=1e-6)


def test_the_key_is_kept_by_a_stored_graph(tmp_path: Path) -> None:
    graph = normalise(_read(CONTROL_FLOW["scan"]))
    save_stored(graph, tmp_path)
    again = load_stored(tmp_path)
    assert [(n.id, n.name, n.inputs, n.captures) for n in again.nodes] == [
        (n.id, n.name, n.inputs, n.captures) for n in graph.nodes
    ]
    assert Subgraph(again, again.all_nodes).key == Subgraph(graph, graph.all_nodes).key


def test_large_constants_of_bodies_become_the_graphs(tmp_path: Path) -> None:
    """Read from external data, they are not copied into each model that is made; names do not collide."""
    random = np.random.default_rng(0)
    outer, inner = (random.standard_normal((40, 40), np.float32) for _ in range(2))
    text = """g (float[40,40] x, bool c) => (float[40,40] y) {
      y = If (c) <
        then_branch = p () => (z) {
          z = If (c) < then_branch = r () => (u) { u = Add (x, w) },
                       else_branch = s () => (u) { u = Neg (x) }> },
        else_branch = q () => (z) { z = Mul (x, w) }>
    }"""
    model = control_flow_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(outer, "w"))
    then = next(a.g for a in model.graph.node[0].attribute if a.name == "then_branch")
    innermost = next(a.g for a in then.node[0].attribute if a.name == "then_branch")
    innermost.initializer.append(onnx.numpy_helper.from_array(inner, "w"))
    inputs = {"x": np.ones((40, 40), np.float32), "c": np.array(True)}
    inside = from_model(model)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    for graph in (inside, load_model(tmp_path / "m.onnx")):
        assert len(graph.constants) == 2
        (body, _) = bodies_of(graph.nodes[0]).values()
        assert not body.constants
        np.testing.assert_array_equal(evaluate(graph, inputs)["y"], 1 + inner)
        off = {**inputs, "c": np.array(False)}
        np.testing.assert_array_equal(evaluate(graph, off)["y"], outer)


def test_functions_are_inlined_in_bodies() -> None:
    model = onnx.parser.parse_model("""
      <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
      g (float[3] x, bool c) => (float[3] y) {
        y = If (c) < then_branch = p () => (z) { z = local.twice (x) },
                     else_branch = q () => (z) { z = Neg (x) }> }
      <domain: "local", opset_import: ["" : 20]> twice (a) => (b) { b = Add (a, a) }""")
    x = np.arange(3, dtype=np.float32)
    for truth, expected in ((True, x + x), (False, -x)):
        np.testing.assert_array_equal(
            evaluate(from_model(model), {"x": x, "c": np.array(truth)})["y"], expected
        )


@pytest.mark.parametrize(
    ("call", "slope"),
    [
        ("y = local.outer (x)", 0.25),
        ("y = local.outer <a = 0.75> (x)", 0.75),
        ("y = local.inner (x)", 0.5),
        ("y = If (c) < then_branch = p () => (z) { z = local.inner (x) },"
         " else_branch = q () => (z) { z = Neg (x) }>", 0.5),
        ("y = local.plain (x)", 0.5),
    ],
)  # fmt: skip
def test_a_function_has_its_own_default_attributes(call: str, slope: float) -> None:
    """Not the operators': LeakyRelu's own slope is 0.01."""
    model = onnx.parser.parse_model(f"""
      <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
      g (float[3] x, bool c) => (float[3] y) {{ {call} }}
      <domain: "local", opset_import: ["" : 20]> inner <alpha: float = 0.5> (a) => (b)
        {{ b = LeakyRelu <alpha: float = @alpha> (a) }}
      <domain: "local", opset_import: ["" : 20, "local" : 1]> plain (a) => (b) {{ b = local.inner (a) }}
      <domain: "local", opset_import: ["" : 20, "local" : 1]> outer <a: float = 0.25> (v) => (w)
        {{ w = local.inner <alpha: float = @a> (v) }}""")
    x = np.array([-1, -2, 3], np.float32)
    given = {"x": x, "c": np.array(True)}
    expected = np.where(x < 0, x * np.float32(slope), x)
    np.testing.assert_array_equal(evaluate(from_model(model), given)["y"], expected)


# shapes


def test_states_keep_their_shapes_if_their_bodies_do() -> None:
    """`onnx` says nothing of a state; what follows is inferred from it as well."""
    graph = _read("""g (float[3] x, float[2,1] z, int64 n) => (y, w) {
      s, t = Loop (n, "", x, z) <body = b (int64 i, bool c, p, q) => (c, r, u) {
        r = Relu (p)
        v = Transpose <perm = [1, 0]> (q)
        u = Add (q, q) }>
      y = Exp (s)
      w = Exp (t) }""")
    assert [str(graph.type_of(v)) for v in "stwy"] == [
        "float32[3]",
        "float32[2,1]",
        "float32[2,1]",
        "float32[3]",
    ]


def test_a_state_that_grows_has_no_shape() -> None:
    graph = _read("""g (float[3] x, int64 n) => (y, z) {
      y, z = Loop (n, "", x, x) <body = b (int64 i, bool c, p, q) => (c, r, u) {
        r = Concat <axis = 0> (p, p)
        u = Relu (q) }> }""")
    assert str(graph.type_of("z")) == "float32[3]"
    with pytest.raises(
        ModelError, match=r"^the shape of 'y', computed by 'Loop_0' \(Loop\), cannot be inferred"
    ):
        require_static(graph)


@pytest.mark.parametrize(
    ("trips", "condition", "yielded", "length"),
    [
        ("n", '""', "Identity (c)", 4),
        ("n", '""', "Not (c)", 4),
        ("n", "yes", "Identity (c)", 4),
        ("n", "yes", "Identity (yes)", 4),
        ("n", "yes", "Identity (no)", None),
        ("n", "yes", "Not (c)", None),
        ("n", "no", "Not (c)", 0),
        ("zero", "keep", "Not (c)", 0),
        ("n", "keep", "Identity (c)", None),
        ("m", '""', "Identity (c)", None),
    ],
)
def test_what_a_loop_gathers_is_as_long_as_it_goes_round(
    trips: str, condition: str, yielded: str, length: int | None
) -> None:
    text = f"""g (float[2] x, bool keep, int64 m) => (y, q)
        <int64 n = {{4}}, int64 zero = {{0}}, bool yes = {{1}}, bool no = {{0}}> {{
      y, q = Loop ({trips}, {condition}, x) <body = b (int64 i, bool c, float[2] s) => (go, r, s) {{
        go = {yielded}
        r = Add (s, s) }}> }}"""
    graph = _read(text)
    type = graph.type_of("q")
    assert (type.shape[0] if not type.symbolic_dims else None) == length
    if length is not None:
        inputs = {"x": np.ones(2, np.float32), "keep": np.array(True), "m": np.array(3)}
        assert evaluate(graph, inputs)["q"].shape == (length, 2)


def test_a_nested_loop_has_a_shape() -> None:
    graph = _read("""g (float[3] x, bool c, float[5,3] z) => (y, w) <int64 n = {2}> {
      y = If (c) <
        then_branch = p () => (r) {
          r = Loop (n, "", x) <body = b (int64 i, bool c1, s) => (c1, t) { t = Relu (s) }> },
        else_branch = q () => (r) { r = Neg (x) }>
      h, w = Scan <num_scan_inputs = 1, scan_output_axes = [1], body = d (k, e) => (l, m) {
          m = Loop (n, "", e) <body = b (int64 i, bool c2, s) => (c2, t) { t = Add (s, k) }>
          l = Identity (k) }> (x, z) }""")
    assert str(graph.type_of("y")) == "float32[3]"
    assert str(graph.type_of("w")) == "float32[3,5]"


def test_a_declared_shape_counts() -> None:
    text = """g (float[1] x, int64 n) => (float[1] y, float[7,1] q) {
      y, q = Loop (n, "", x) <body = b (int64 i, bool c, s) => (c, t, s) { t = Relu (s) }> }"""
    graph = _read(text)
    require_static(graph)
    inputs = {"x": np.ones(1, np.float32), "n": np.array(7)}
    assert evaluate(graph, inputs)["q"].shape == (7, 1)
    with pytest.raises(ModelError, match=r"Loop_0 \(Loop\): 'q' should be float32\[7,1\]"):
        evaluate(graph, {**inputs, "n": np.array(3)})


def test_given_shapes_hold_in_bodies_whatever_these_say() -> None:
    text = """g (float[n,3] x, bool c) => (float[n,3] y) {
      y = If (c) <then_branch = p () => (float[1,3] u) { k = Relu (x)  u = Exp (k) },
                  else_branch = q () => (float[n,3] u) { u = Neg (x) }> }"""
    graph = from_model(control_flow_model(text), {"x": (5, 3)})
    assert str(graph.type_of("y")) == "float32[5,3]"
    for body in bodies_of(graph.nodes[0]).values():
        assert {str(body.type_of(v)) for v in body.intermediates()} == {"float32[5,3]"}


def test_bodies_without_types_are_given_some() -> None:
    graph = _read("""g (float[3] x, float[4,2] z, int64 n) => (y, w) {
      y, s = Loop (n, "", x) <body = b (i, c, p) => (c, r, r) { r = Relu (p) }>
      w, t = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = d (k, e) => (l, m) {
        l = Neg (k)
        m = Relu (e) }> (x, z) }""")
    loop, scan = (bodies_of(n)["body"] for n in graph.nodes)
    assert [str(loop.type_of(v)) for v in loop.inputs] == ["int64[]", "bool[]", "float32[3]"]
    assert [str(scan.type_of(v)) for v in (*scan.inputs, *scan.outputs)] == 2 * ["float32[3]", "float32[4]"]


# passes


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
    graph = _read(text)
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
            _assert_same(evaluate(g, inputs), list(expected.values()))
        _assert_same(expected, _onnxruntime(to_model(normal), inputs))
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
    expected = _onnxruntime(model, inputs)
    assert [a.shape for a in expected] == 2 * [() if truth else (1,)]
    normal = normalise(graph)
    assert normal.type_of("y").is_static == normal.type_of("z").is_static == known
    for g in (graph, normal):
        _assert_same(evaluate(g, inputs), expected)


def test_an_open_condition_changes_nothing() -> None:
    graph = _read(CONTROL_FLOW["nested ifs"])
    assert _pass(graph, "inline-constant-if") is graph


def test_dead_code_keeps_what_bodies_read() -> None:
    graph = normalise(_read(CONTROL_FLOW["if"]))
    assert _ops(graph) == ["Exp", "If", "Tanh"]


def test_an_unused_output_stays() -> None:
    """A body yields as many values as its node."""
    text = CONTROL_FLOW["if of two"].replace("=> (float[2,3] y, float[3] z)", "=> (float[3] z)")
    model = control_flow_model(text)
    graph = normalise(from_model(model))
    assert len(graph.nodes[0].outputs) == 2
    for inputs in inputs_of(model):
        _assert_same(evaluate(graph, inputs), _onnxruntime(model, inputs))


def test_an_output_without_a_name_is_given_one() -> None:
    """ONNX Runtime demands it, unlike ONNX."""
    text = CONTROL_FLOW["if of two"].replace("=> (float[2,3] y, float[3] z)", "=> (float[3] z)")
    model = control_flow_model(text.replace("y, z =", '"", z ='))
    graph = normalise(from_model(model))
    assert graph.nodes[0].outputs == ("If_0.0", "z")
    for inputs in inputs_of(model):
        _assert_same(evaluate(graph, inputs), _onnxruntime(to_model(graph), inputs))


def _constant_loop(trips: int, op: str = "Sin (s)") -> str:
    return f"""g (float[3] x) => (float[3] y) <int64 n = {{{trips}}}, float[3] k = {{1.0, 2.0, 3.0}}> {{
      z = Loop (n, "", k) <body = b (int64 i, bool c, float[3] s) => (c, r) {{ r = {op} }}>
      y = Add (x, z) }}"""


def test_what_depends_on_constants_only_is_folded_if_that_is_soon_done() -> None:
    assert _ops(normalise(_read(_constant_loop(3)))) == ["Add"]
    folded = normalise(_read(_constant_loop(3)))
    np.testing.assert_allclose(
        next(iter(folded.constants.values())), np.sin(np.sin(np.sin([1.0, 2.0, 3.0]))), rtol=1e-6
    )
    assert _ops(normalise(_read(_constant_loop(10**9)))) == ["Loop", "Add"]
    assert _ops(normalise(_read(_constant_loop(3, "RandomUniformLike (s)")))) == ["Loop", "Add"]


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
        _assert_same(evaluate(graph, inputs), _onnxruntime(model, inputs))


def test_a_scan_in_batches_stays_in_its_opset() -> None:
    text = """g (float[1,2] h, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
      y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] r, float[2] q) {
        r = Add (s, e)
        q = Identity (r) }> ("", h, x) }"""
    model = control_flow_model(text, 8)
    graph = normalise(from_model(model))
    assert graph.opsets[""] == 8
    for inputs in inputs_of(model):
        _assert_same(evaluate(graph, inputs), _onnxruntime(model, inputs))
