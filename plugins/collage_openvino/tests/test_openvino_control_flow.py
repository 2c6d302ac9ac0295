"""If, Loop and Scan with what their bodies read from outside, in every variant that is offered."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx.parser
import pytest
from collage_openvino.backend import OpenvinoBackend

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.target import Target
from collage_core.testing import check_group

TARGET = Target("cpu", 2)
Inputs = dict[str, npt.NDArray[Any]]


def _graph(text: str, opset: int = 20) -> Graph:
    return from_model(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}'))


def _inputs(graph: Graph, truth: bool) -> Inputs:
    random = np.random.default_rng(5)
    return {
        v: np.full((), truth)
        if graph.type_of(v).dtype == "bool"
        else random.standard_normal(graph.shape_of(v)).astype(np.float32)
        for v in graph.inputs
    }


def _run(part: Subgraph, inputs: Inputs) -> list[Variant]:
    return list(check_group(OpenvinoBackend(), part, inputs, TARGET, repeatable=False))


@pytest.mark.parametrize("truth", [True, False])
def test_a_branch_reads_values_and_constants_from_outside(truth: bool) -> None:
    """Constants that are inside the model and, being larger, beside it; one is yielded as it is."""
    weights = ", ".join(str(k / 400) for k in range(400))
    graph = _graph(f"""g (float[20,20] x, bool c) => (float[20,20] y, float[20,20] z)
        <float[20,20] w = {{{weights}}}, float[1] k = {{2.0}}> {{
      t = Exp (x)
      y, z = If (c) <
        then_branch = p () => (u, v) {{ a = MatMul (t, w)  u = Mul (a, k)  v = Add (t, k) }},
        else_branch = q () => (w, x) {{}}> }}""")
    node = next(n for n in graph.nodes if n.op_type == "If")
    for part in (Subgraph(graph, graph.all_nodes), Subgraph(graph, [node.id])):
        assert len(_run(part, _inputs(graph, truth))) == 1


def test_a_while_and_a_for() -> None:
    graph = _graph("""g (float[2] x, bool keep) => (float[2] y, float[3,2] z, float[2] w)
        <float limit = {40.0}, int64 axis = {0}, int64 n = {3}> {
      y = Loop ("", keep, x) <body = b (int64 i, bool c, float[2] s) => (go, r) {
        a = Abs (s)
        b = Add (a, limit)
        r = Add (b, a)
        m = ReduceMax <keepdims = 0> (r)
        go = Less (m, limit) }>
      w, z = Loop (n, "", x) <body = b (int64 i, bool c, float[2] s) => (go, r, q) {
        go = Not (c)
        f = Cast <to = 1> (i)
        q = Add (y, f)
        r = Sub (s, q) }> }""")
    for truth in (True, False):
        assert len(_run(Subgraph(graph, graph.all_nodes), _inputs(graph, truth))) == 1


_SCAN = """g (float[3] h, float[3,4] x) => (float[3] y, float[3,4] z) <float[3] k = {{1.0, 2.0, 4.0}}> {{
  t = Neg (h)
  y, z = Scan <num_scan_inputs = 1, scan_input_axes = [-1], scan_input_directions = [1],
      scan_output_axes = [1], body = b (s, e) => (r, u) {{
    r = Add (s, e)
    u = Sub (e, {read}) }}> (h, x) }}"""


def test_a_scan_backward_along_another_axis_reads_constants() -> None:
    graph = _graph(_SCAN.format(read="k"))
    assert len(_run(Subgraph(graph, graph.all_nodes), _inputs(graph, True))) == 1


def test_a_scan_that_reads_values_is_declined() -> None:
    """The library wants all that a Scan reads to be its inputs."""
    graph = _graph(_SCAN.format(read="t"))
    (refusal,) = OpenvinoBackend().supported([Subgraph(graph, graph.all_nodes)], TARGET)
    assert isinstance(refusal, Refusal)
    assert "Number of Scan node inputs" in refusal.reason


def test_a_trip_count_fits_into_32_bits_and_a_sum_may_not() -> None:
    graph = _graph("""g (int64 n, float[2] x, int64[1] j) => (float[2] y, int64[1] k) {
      y = Loop (n, "", x) <body = b (int64 i, bool c, s) => (c, r) { r = Add (s, x) }>
      k = Loop (n, "", j) <body = d (int64 i, bool c, s) => (c, r) { r = Add (s, s) }> }""")
    first, second = (Subgraph(graph, [n.id]) for n in graph.nodes)
    target = Target("cpu", 2)
    assert OpenvinoBackend().supported([first], target) == [None]
    inputs: Inputs = {"n": np.array(4), "x": np.ones(2, np.float32), "j": np.array([1 << 40])}
    assert len(_run(first, inputs)) == 1
    (refusal,) = OpenvinoBackend().supported([second], target)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "'j' is int64[1]; OpenVINO computes in 32 bits"


def test_groups_with_and_without_bodies_are_asked_for_together() -> None:
    """Some of the constants have the same names inside and outside bodies."""
    graph = _graph("""g (float[2] x, bool c) => (float[2] y, float[2] z) <float[2] w = {1.0, 2.0}> {
      a = Add (x, w)
      y = If (c) <then_branch = p () => (r) { r = Mul (a, w) },
                  else_branch = q () => (r) { r = Sub (w, a) }>
      z = If (c) <then_branch = p () => (r) { r = Sub (a, w) },
                  else_branch = q () => (r) { r = Exp (w) }> }""")
    parts = [Subgraph(graph, [n.id]) for n in graph.nodes]
    assert OpenvinoBackend().supported(parts, TARGET) == [None, None, None]


@pytest.mark.parametrize("truth", [True, False])
def test_between_convolutions_it_is_offered_channels_last(truth: bool) -> None:
    graph = _graph("""g (float[1,2,5,6] x, bool c) => (float[1,2,5,6] y)
        <float[2,2,1,1] w = {1.0, -1.0, 0.5, 2.0}> {
      a = Conv (x, w)
      b = If (c) < then_branch = p () => (r) { r = Mul (a, x) }, else_branch = q () => (r) { r = Neg (a) }>
      y = Conv (b, w) }""")
    part = Subgraph(graph, [n.id for n in graph.nodes if n.op_type == "If"])
    _, images = _run(part, _inputs(graph, truth))
    assert {f.layout for f in images.inputs} == {(), (0, 2, 3, 1)}


_UNREAD = """g (int64 n, bool c, float[2] x, float[2] z) => (float[2] y)
    <int64 five = {{5}}, bool yes = {{1}}> {{
  y = Loop ({trips}, {condition}, z) <body = b (int64 i, bool k, float[2] s) => (bool k1, float[2] r) {{
    k1 = Identity (k)
    dead = Neg (s)
    r = {result} (x) }}> }}"""


@pytest.mark.parametrize(("trips", "condition"), [("n", '""'), ("five", "c"), ("n", "yes"), ('""', "c")])
def test_a_loop_that_may_not_run_must_read_its_states(trips: str, condition: str) -> None:
    """The library would leave in `y` what was there before."""
    graph = _graph(_UNREAD.format(trips=trips, condition=condition, result="Exp"))
    (refusal,) = OpenvinoBackend().supported([Subgraph(graph, graph.all_nodes)], TARGET)
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith("Loop_0 (Loop) may run no time, and its body does not read 's'")


def test_a_state_that_only_a_scan_is_given_which_does_not_read_it_counts_as_unread() -> None:
    graph = _graph("""g (int64 n, float[2] x, float[3,2] z) => (float[2] y) {
      y = Loop (n, "", x) <body = b (int64 i, bool k, float[2] s) => (bool k, float[2] r) {
        r = Scan <num_scan_inputs = 1,
          body = d (float[2] t, float[2] e) => (float[2] u) { u = Neg (e) }> (s, z)
      }> }""")
    (refusal,) = OpenvinoBackend().supported([Subgraph(graph, graph.all_nodes)], TARGET)
    assert isinstance(refusal, Refusal)
    assert "does not read 's'" in refusal.reason


def test_a_loop_that_runs_need_not_read_its_states() -> None:
    graph = _graph(_UNREAD.format(trips="five", condition="yes", result="Exp"))
    inputs: Inputs = {v: np.ones(2, np.float32) for v in ("x", "z")}
    assert len(_run(Subgraph(graph, graph.all_nodes), inputs)) == 1


@pytest.mark.parametrize("truth", [True, False])
def test_a_loop_that_does_not_run_yields_what_it_was_given(truth: bool) -> None:
    text = _UNREAD.format(trips="five", condition="c", result="Exp").replace("Exp (x)", "Add (s, x)")
    graph = _graph(text)
    inputs: Inputs = {"c": np.array(truth), "x": np.ones(2, np.float32), "z": np.full(2, 7, np.float32)}
    assert len(_run(Subgraph(graph, graph.all_nodes), inputs)) == 1
