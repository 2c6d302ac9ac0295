"""A DequantizeLinear for each reader."""

from __future__ import annotations

import numpy as np
import pytest
from collage_benchmarks.written import written

from collage_core.ir import Graph
from collage_core.reference import evaluate

_PRELUDE = """(float[4,4] x) => (float[4,4] y) <float s = {0.1}, uint8 z = {128}> {
    q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"""


def _readers(graph: Graph) -> list[int]:
    """Of what each DequantizeLinear yields, the graph among them."""
    made = [n.outputs[0] for n in graph.nodes if n.op_type == "DequantizeLinear"]
    return [len(graph.consumers(v)) + graph.is_output(v) for v in made]


@pytest.mark.parametrize(
    ("body", "readers"),
    [
        ("a = Relu (d) b = Neg (d) y = Add (a, b) }", [1, 1]),
        ("y = Add (d, d) }", [1]),
        ("a = Relu (d) b = Add (d, d) y = Add (a, b) }", [1, 1]),
        ("y = Relu (d) }", [1]),
    ],
)
def test_each_reader_has_its_own(body: str, readers: list[int]) -> None:
    graph = written(f"{_PRELUDE} {body}")
    assert _readers(graph) == readers
    assert len({n.name for n in graph.nodes}) == len(graph.nodes)


def test_what_the_graph_returns_stays_where_it_was() -> None:
    graph = written(f"{_PRELUDE.replace('y)', 'd, float[4,4] y)')} y = Relu (d) }}")
    assert _readers(graph) == [1, 1]
    assert graph.outputs == ("d", "y")
    x = np.linspace(-5, 5, 16, dtype=np.float32).reshape(4, 4)
    found = evaluate(graph, {"x": x})
    np.testing.assert_array_equal(found["y"], np.maximum(found["d"], 0))


def test_bodies_of_control_flow_read_the_first() -> None:
    graph = written(
        f"""{_PRELUDE.replace("x)", "x, bool c)")} a = Neg (d)
        i = If (c) <then_branch = t () => (float[4,4] u) {{ u = Relu (d) }},
        else_branch = e () => (float[4,4] v) {{ v = Abs (d) }}> y = Add (a, i) }}"""
    )
    x = np.linspace(-5, 5, 16, dtype=np.float32).reshape(4, 4)
    found = evaluate(graph, {"x": x, "c": np.array(True)})["y"]
    np.testing.assert_allclose(found, np.maximum(-x, 0), atol=0.11)
