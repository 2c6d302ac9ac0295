"""If, Loop and Scan in graphs: what is read of their bodies, which shapes they have, how they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from control_flow_answers import assert_same, onnxruntime_answers, read
from control_flow_models import CONTROL_FLOW, control_flow_model, inputs_of

from collage_core.errors import ModelError
from collage_core.formats import channels_last
from collage_core.ir import (
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
from collage_core.ir.passes import normalise
from collage_core.ir.static import require_static
from collage_core.ir.verify import verify
from collage_core.reference import evaluate


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
        expected = onnxruntime_answers(written, inputs)
        for g in (graph, normal, again):
            assert_same(evaluate(g, inputs), expected)
        if "captures" not in name and " in an if " not in name:
            assert_same(evaluate(graph, inputs), onnxruntime_answers(model, inputs))


def test_what_bodies_capture_are_inputs_of_their_node() -> None:
    graph = read(CONTROL_FLOW["nested ifs"])
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
    node = read(CONTROL_FLOW["while"]).node_named("Loop_0")
    assert node.formal_inputs == ("", "keep", "x")
    assert node.captured == {"limit": "limit"}


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
        (found,) = onnxruntime_answers(handed, stored)
        np.testing.assert_allclose(found, values["b"].transpose(last.layout), rtol=1e-6)


def test_the_key_is_kept_by_a_stored_graph(tmp_path: Path) -> None:
    graph = normalise(read(CONTROL_FLOW["scan"]))
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
    graph = read("""g (float[3] x, float[2,1] z, int64 n) => (y, w) {
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
    graph = read("""g (float[3] x, int64 n) => (y, z) {
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
    graph = read(text)
    type = graph.type_of("q")
    assert (type.shape[0] if not type.symbolic_dims else None) == length
    if length is not None:
        inputs = {"x": np.ones(2, np.float32), "keep": np.array(True), "m": np.array(3)}
        assert evaluate(graph, inputs)["q"].shape == (length, 2)


def test_a_nested_loop_has_a_shape() -> None:
    graph = read("""g (float[3] x, bool c, float[5,3] z) => (y, w) <int64 n = {2}> {
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
    graph = read(text)
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
    graph = read("""g (float[3] x, float[4,2] z, int64 n) => (y, w) {
      y, s = Loop (n, "", x) <body = b (i, c, p) => (c, r, r) { r = Relu (p) }>
      w, t = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = d (k, e) => (l, m) {
        l = Neg (k)
        m = Relu (e) }> (x, z) }""")
    loop, scan = (bodies_of(n)["body"] for n in graph.nodes)
    assert [str(loop.type_of(v)) for v in loop.inputs] == ["int64[]", "bool[]", "float32[3]"]
    assert [str(scan.type_of(v)) for v in (*scan.inputs, *scan.outputs)] == 2 * ["float32[3]", "float32[4]"]
