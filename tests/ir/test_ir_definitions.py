"""Operators of other domains, put in the place of which is what they compute."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
import pytest

from collage_core.errors import ModelError
from collage_core.ir import UNKNOWN, Call, Definition, Graph, TensorType, from_model
from collage_core.reference import evaluate

_X = {"x": np.array([-1.0, 2.0, 3.0], np.float32)}
_RELU = "(x) => (y) { y = Relu (x) }"


def _read(nodes: str, *definitions: Definition, functions: str = "", opset: int = 17) -> Graph:
    domains = ", ".join(f'"{d}" : 1' for d in ("a", "b"))
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : {opset}, {domains}]>
    g (float[3] x) => (float[3] z) {{ {nodes} }} {functions}""")
    return from_model(model, definitions=definitions)


def _answer(graph: Graph) -> list[float]:
    assert not any(n.domain for n in graph.nodes)
    (z,) = evaluate(graph, _X).values()
    return [float(v) for v in z]


def test_each_call_may_be_another_function() -> None:
    """It hangs on attributes, on the inputs that are there, and on the opset."""
    calls: list[Call] = []

    def state(call: Call) -> str:
        calls.append(call)
        more = "z = Add (y, b)" if call.given[1:] == (True,) else "z = Identity (y)"
        return f"""(x, b) => (z) {{
          k = Constant <value_float = {call.attributes.get("by", 1.0)}> () y = Mul (x, k) {more} }}"""

    twice = "a.Scale <by: float = 2.0>"
    nodes = f'p = a.Scale <by: float = 2.0, way: string = "up"> (x) q = a.Scale (p, x) z = {twice} (q)'
    graph = _read(nodes, Definition("a", "Scale", state))
    assert _answer(graph) == [-6.0, 12.0, 18.0]
    assert [c.given for c in calls] == [(True,), (True, True), (True,)]
    assert calls[0] == Call((TensorType("float32", (3,)),), (True,), {"by": 2.0, "way": "up"}, 17)


def test_what_one_makes_known_another_may_hang_on() -> None:
    """What a definition still lacks is known when those before are in their places."""
    seen: list[tuple[TensorType | None, ...]] = []

    def state(call: Call) -> str | None:
        seen.append(call.types)
        (type,) = call.types
        return (
            None
            if type in (None, UNKNOWN)
            else f"(x) => (y) {{ y = {'Neg' if type.shape == (3,) else 'Abs'} (x) }}"
        )

    defined = Definition("a", "F", lambda call: _RELU)
    assert _answer(_read("p = a.F (x) z = b.G (p)", defined, Definition("b", "G", state))) == [
        0.0,
        -2.0,
        -3.0,
    ]
    assert seen == [(UNKNOWN,), (TensorType("float32", (3,)),)]
    left = _read("p = a.H (x) z = b.G (p)", defined, Definition("b", "G", state))
    assert [n.qualified_op for n in left.nodes] == ["a.H", "b.G"]


def test_outputs_that_nobody_asks_for_go_nowhere() -> None:
    asked: list[tuple[bool, ...]] = []

    def state(call: Call) -> str:
        asked.append(call.asked)
        return "(x) => (y, sign, size) { y = Relu (x) sign = Sign (x) size = Size (x) }"

    graph = _read("p = a.F (x) q, s = a.F (p) z = Mul (q, s)", Definition("a", "F", state))
    assert _answer(graph) == [0.0, 2.0, 3.0]
    assert asked == [(True,), (True, True)]


def test_one_that_calls_itself_is_refused() -> None:
    defined = Definition("a", "F", lambda call: "(x) => (y) { y = a.F (x) }")
    with pytest.raises(ModelError, match=r"the definition of a\.F is said in a\.F, which is not ONNX's"):
        _read("z = a.F (x)", defined)


def test_one_that_declares_attributes_is_refused() -> None:
    """A node's own value would be lost."""
    text = "<by: float = 3.0>(x) => (y) { k = Constant <value_float: float = @by> () y = Mul (x, k) }"
    with pytest.raises(ModelError, match=r"the definition of a\.F declares attributes"):
        _read("z = a.F <by: float = 2.0> (x)", Definition("a", "F", lambda call: text))


def test_a_model_need_not_name_the_domain() -> None:
    def state(call: Call) -> str | None:
        return None if call.types == (UNKNOWN,) else _RELU

    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "a" : 1]>
      g (float[3] x) => (float[3] z) { p = a.F (x) q = a.F (p) z = Neg (q) }""")
    del model.opset_import[1:]
    assert _answer(from_model(model, definitions=[Definition("a", "F", state)])) == [-0.0, -2.0, -3.0]


def test_each_layer_may_hang_on_the_one_before() -> None:
    """As attention does on the normalised sum before it: of forty layers none is left."""

    def state(call: Call) -> str | None:
        return None if call.types == (UNKNOWN,) else _RELU

    layers = " ".join(f"v{i + 1} = a.F (v{i})" for i in range(40))
    graph = _read(f"v0 = Neg (x) {layers} z = Neg (v40)", Definition("a", "F", state))
    assert _answer(graph) == [-1.0, 0.0, 0.0]


def test_names_of_the_model_s_own_are_left_to_it() -> None:
    graph = _read("p = a.F (x) z = a.F_0 (p)", Definition("a", "F", lambda call: _RELU))
    assert [n.qualified_op for n in graph.nodes] == ["Relu", "a.F_0"]


def test_what_is_absent_at_the_end_may_be_written_out() -> None:
    text = 'p = a.F (x, "", "") z = a.F (p, "")'
    assert _answer(_read(text, Definition("a", "F", lambda call: _RELU))) == [0.0, 2.0, 3.0]


def test_large_constants_stay_as_they_are() -> None:
    """Also those that are inputs as well, which may be given other values."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "a" : 1]>
      g (float[512] x) => (float[512] z) { p = a.F (x) q = Mul (p, w) z = Add (q, v) }""")
    w, v = np.arange(512, dtype=np.float32), np.ones(512, np.float32)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in (("w", w), ("v", v)))
    model.graph.input.append(onnx.helper.make_tensor_value_info("v", 1, [512]))
    graph = from_model(model, definitions=[Definition("a", "F", lambda call: _RELU)])
    assert np.array_equal(graph.constants["w"], w)
    x = np.full(512, 2.0, np.float32)
    (z,) = evaluate(graph, {"x": x}).values()
    assert np.array_equal(z, 2.0 * w + 1.0)


def test_domains_are_told_apart() -> None:
    definitions = [
        Definition("a", "F", lambda call: _RELU),
        Definition("b", "F", lambda call: "(x) => (y) { y = Neg (x) }"),
    ]
    assert _answer(_read("p = a.F (x) z = b.F (p)", *definitions)) == [0.0, -2.0, -3.0]
    same = [Definition(d, "F", lambda call: _RELU) for d in ("a", "b")]
    assert _answer(_read("p = a.F (x) z = b.F (p)", *same)) == [0.0, 2.0, 3.0]


def test_the_model_s_own_functions_come_first_and_may_call_them() -> None:
    own = '<domain: "b", opset_import: ["" : 17, "a" : 1]> F_0 (p) => (q) { r = a.F (p) q = Neg (r) }'
    defined = Definition("a", "F", lambda call: _RELU)
    assert _answer(_read("z = b.F_0 (x)", defined, functions=own)) == [0.0, -2.0, -3.0]
    theirs = '<domain: "a", opset_import: ["" : 17]> F (p) => (q) { q = Abs (p) }'
    assert _answer(_read("z = a.F (x)", defined, functions=theirs)) == [1.0, 2.0, 3.0]


def test_within_bodies() -> None:
    text = """c = Constant <value_int = 1> () d = Cast <to: int = 9> (c)
      z = If (d) <then_branch = t () => (u) { u = a.F (x) }, else_branch = e () => (v) { v = Neg (x) }>"""
    graph = _read(text, Definition("a", "F", lambda call: _RELU))
    (z,) = evaluate(graph, _X).values()
    assert list(z) == [0.0, 2.0, 3.0]


def test_what_is_not_covered_though_all_is_known_is_named() -> None:
    nothing = Definition("a", "F", lambda call: None)
    told = "of a.F does not cover it at opset 17: inputs x float32[3], none, x float32[3]; by = 2"
    with pytest.raises(ModelError, match=rf"^node 'n': the definition {re.escape(told)}$"):
        _read("[n] z = a.F <by: int = 2> (x, , x)", nothing)
    assert [n.qualified_op for n in _read("p = b.G (x) z = a.F (p)", nothing).nodes] == ["b.G", "a.F"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("(x) => (y) { y = Add (x, q) }", "reads 'q' in Add, which nothing in it computes before"),
        ("(x) => (y) { z = Relu (x) }", "returns 'y', which nothing in it computes"),
        ("(x) => (y) { y = Reluu (x) }", "is said in Reluu, which is not ONNX's"),
        ("() => (y) { y = Constant <value_float = 1.0> () }", "has 0 inputs, and the node has 1"),
    ],
)
def test_a_definition_that_is_none_is_named(text: str, fault: str) -> None:
    with pytest.raises(ModelError, match=rf"^node 'n': the definition of a\.F {re.escape(fault)}$"):
        _read("[n] z = a.F (x)", Definition("a", "F", lambda call: text))


def test_what_no_output_hangs_on_may_lack_a_definition() -> None:
    graph = _read("z = Relu (x) w = a.F (x)", Definition("a", "F", lambda call: None))
    assert [n.qualified_op for n in graph.nodes] == ["Relu", "a.F"]


def test_each_node_is_looked_at_though_its_text_is_known() -> None:
    text = "(x) => (y, q) { y = Relu (x) }"
    for nodes, fault in (
        ("p = a.F (x) [n] z = a.F (p, x)", "has 1 inputs, and the node has 2"),
        ("p = a.F (x) [n] z, w = a.F (p)", "returns 'q', which nothing in it computes"),
    ):
        with pytest.raises(ModelError, match=f"node 'n': the definition of a.F {fault}"):
            _read(nodes, Definition("a", "F", lambda call: text))


def test_what_would_end_the_process_is_named() -> None:
    def state(call: Call) -> str:
        raise SystemExit(0)

    with pytest.raises(
        ModelError, match=r"of a\.F fails: BackendError: it would end the process: sys\.exit\(0\)"
    ):
        _read("z = a.F (x)", Definition("a", "F", state))


def test_what_fails_is_named() -> None:
    def fails(call: Call) -> str:
        raise KeyError("way")

    with pytest.raises(ModelError, match=r"the definition of a\.F fails: KeyError: 'way'"):
        _read("z = a.F (x)", Definition("a", "F", fails))
    with pytest.raises(ModelError, match=r"the definition of a\.F is no function: "):
        _read("z = a.F (x)", Definition("a", "F", lambda call: "(x) =>"))
    with pytest.raises(ValueError, match="for ONNX to say"):
        Definition("", "Relu", lambda call: None)
