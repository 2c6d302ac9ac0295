"""If, Loop and Scan with what their bodies read from outside, in every variant that is offered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx.parser
import pytest

from collage_core.backend import Variant
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, from_model

RunGroup = Callable[[Subgraph, Mapping[str, Array]], Sequence[Variant]]
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


@pytest.mark.parametrize("truth", [True, False])
def test_a_branch_reads_values_and_constants_from_outside(run: RunGroup, truth: bool) -> None:
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
        assert len(run(part, _inputs(graph, truth))) == 1


def test_a_while_and_a_for(run: RunGroup) -> None:
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
        assert len(run(Subgraph(graph, graph.all_nodes), _inputs(graph, truth))) == 1


def test_a_scan_backward_along_another_axis(run: RunGroup) -> None:
    graph = _graph("""g (float[3] h, float[3,4] x) => (float[3] y, float[3,4] z) {
      t = Neg (h)
      y, z = Scan <num_scan_inputs = 1, scan_input_axes = [-1], scan_input_directions = [1],
          scan_output_axes = [1], body = b (float[3] s, float[3] e) => (r, u) {
        r = Add (s, e)
        u = Sub (e, t) }> (h, x) }""")
    assert len(run(Subgraph(graph, graph.all_nodes), _inputs(graph, True))) == 1


@pytest.mark.parametrize("truth", [True, False])
def test_between_convolutions_it_is_offered_channels_last(run: RunGroup, truth: bool) -> None:
    graph = _graph("""g (float[1,2,5,6] x, bool c) => (float[1,2,5,6] y)
        <float[2,2,1,1] w = {1.0, -1.0, 0.5, 2.0}> {
      a = Conv (x, w)
      b = If (c) < then_branch = p () => (r) { r = Mul (a, x) }, else_branch = q () => (r) { r = Neg (a) }>
      y = Conv (b, w) }""")
    part = Subgraph(graph, [n.id for n in graph.nodes if n.op_type == "If"])
    _, images = run(part, _inputs(graph, truth))
    assert {f.layout for f in images.inputs} == {(), (0, 2, 3, 1)}
