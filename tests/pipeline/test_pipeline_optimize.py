"""One optimisation with the real backends: the numbers agree with each other, views cost nothing, the process
stays free of vendors' libraries.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from collage_core import (
    Constraints,
    CostDatabase,
    Optimization,
    Target,
    build,
    formulate,
    optimize,
)
from collage_core.errors import ModelError, PlacementError
from collage_core.formats import Array
from collage_core.ir import NodeSet, Subgraph
from collage_core.pipeline.effort import NORMAL
from collage_core.pipeline.original import ORIGINAL
from collage_core.placement import VIEW
from collage_core.search import OpLevelSearch
from collage_core.search.cost import breakdown, total_ms

if TYPE_CHECKING:
    from tests.pipeline.conftest import Answer, Parse

pytestmark = pytest.mark.ci

_TARGET = Target("cpu", 1)
_ATTENTION = """(float[1,16,32] x) => (float y) {
    [q] q = MatMul(x, wq)
    [q_split] qs = Reshape(q, heads)
    [q_turn] qt = Transpose<perm=[0,2,1,3]>(qs)
    [k] k = MatMul(x, wk)
    [k_split] ks = Reshape(k, heads)
    [k_turn] kt = Transpose<perm=[0,2,3,1]>(ks)
    [scores] s = MatMul(qt, kt)
    [weights] p = Softmax(s)
    [mix] m = MatMul(p, qt)
    [m_turn] mt = Transpose<perm=[0,2,1,3]>(m)
    [m_join] mj = Reshape(mt, joined)
    [out] o = MatMul(mj, wo)
    [odd] y = CumSum(o, axis)
}"""
_VIEWS = {"q_split", "q_turn", "k_split", "k_turn", "m_turn", "m_join"}


def _error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """max|difference| / max|reference|, the worst of the outputs."""
    return max(float(np.max(np.abs(found[v] - y)) / np.max(np.abs(y))) for v, y in expected.items())


@pytest.fixture(scope="module")
def attention(parse: Parse) -> onnx.ModelProto:
    return parse(
        _ATTENTION,
        wq=(32, 32),
        wk=(32, 32),
        wo=(32, 32),
        heads=np.array([1, 16, 4, 8]),
        joined=np.array([1, 16, 32]),
        axis=np.array(1),
    )


@pytest.fixture(scope="module")
def x() -> dict[str, Array]:
    return {"x": np.random.default_rng(1).standard_normal((1, 16, 32), dtype=np.float32)}


@pytest.fixture(scope="module")
def placed(attention: onnx.ModelProto) -> Optimization:
    return optimize(attention, backends=["dnnl"], target=_TARGET, rounds=3)


def test_predicted_is_the_cost_of_what_was_chosen(placed: Optimization) -> None:
    formulation = formulate(placed.candidates, placed.costs.record_of, placed.costs.converters())
    # The numbers of the choices are those of the search that found it: what was measured since counts here.
    place = {
        (c.backend, c.subgraph.node_set, c.variant): number for number, c in enumerate(formulation.choices)
    }
    chosen = tuple(place[g.backend, NodeSet(g.nodes), g.variant] for g in placed.mix.groups)
    solution = placed.op_level.solution
    assert solution is not None
    assert placed.mix.predicted_ms == pytest.approx(total_ms(formulation.problem, chosen))
    parts = breakdown(formulation.problem, chosen)
    assert parts.kernels_ms == pytest.approx(sum(g.cost_ms or 0.0 for g in placed.mix.groups))
    assert parts.conversions_ms == pytest.approx(sum(c.cost_ms or 0.0 for c in placed.mix.conversions))
    again = formulation.placement(replace(solution, choices=chosen))
    assert placed.mix.groups == again.groups
    assert placed.mix.conversions == again.conversions
    assert placed.mix.terms_ms == pytest.approx(again.terms_ms)
    assert solution.optimal == placed.mix.optimal
    assert solution.total_ms == pytest.approx(placed.mix.predicted_ms)
    # Of what the last search has found for times in place it may fall short, but not by more than is told.
    best = OpLevelSearch().solve(formulation.problem)
    assert best.optimal
    assert solution.lower_bound_ms is not None
    assert solution.lower_bound_ms <= best.total_ms * (1 + 1e-9), "it is a bound, be not all measured"
    if solution.optimal:
        assert solution.total_ms <= best.total_ms * (1 + NORMAL.gap + 1e-9)


def test_views_are_free_and_the_numbers_right(
    placed: Optimization, attention: onnx.ModelProto, x: dict[str, Array], answer: Answer
) -> None:
    graph = placed.graph
    views = {graph.node(i).name for g in placed.mix.groups if g.backend == VIEW for i in g.nodes}
    assert views <= _VIEWS
    assert len(views) >= 4
    assert views & {"q_turn", "k_turn", "m_turn"}, "a transposed operand is read where it lies"
    assert all(g.cost_ms == 0 for g in placed.mix.groups if g.backend == VIEW)
    executable = build(graph, placed.mix)
    computed = [g for g in placed.mix.groups if g.backend != VIEW]
    assert len(executable.kernels) == len(computed) + len(placed.mix.conversions)
    assert _error(executable(x), answer(attention, x)) < 1e-5


def test_what_only_the_reference_runs_falls_to_it(placed: Optimization) -> None:
    graph = placed.graph
    on_reference = {
        graph.node(i).name for g in placed.mix.groups if g.backend == "reference" for i in g.nodes
    }
    assert "odd" in on_reference
    (single,) = [s for s in placed.singles if s.backend == "dnnl"]
    assert (single.backend, single.alone, single.label) == ("dnnl", False, "dnnl+reference")
    assert "'odd' (CumSum)" in (single.reason or "")


def test_every_node_is_placed_once(placed: Optimization) -> None:
    ids = [i for g in placed.placement.groups for i in g.nodes]
    assert sorted(ids) == sorted(n.id for n in placed.graph.nodes)
    assert placed.placement.predicted_ms is not None
    assert placed.comparison is not None
    assert placed.comparison.records["collage"].details["max_abs_error"] is not None


def test_again_nothing_is_measured(placed: Optimization, attention: onnx.ModelProto) -> None:
    again = optimize(attention, backends=["DNNL"], target=_TARGET, rounds=3)
    assert placed.costs.measured > 0
    assert again.costs.measured == 0
    # What only leads to kernels that are known to fail is not even looked up.
    assert again.costs.kernels == placed.costs.kernels
    assert again.costs.cached <= placed.costs.measured + placed.costs.cached
    assert again.counts["known"] + again.counts["bounded_out"] == again.counts["offered"]
    assert again.comparison is not None
    assert placed.comparison is not None
    assert not any(c.measured for c in again.comparisons)
    assert again.placement == placed.placement
    assert again.comparison.records == placed.comparison.records


def test_jobs_travel_through_an_executor(parse: Parse, tmp_path: Path) -> None:
    model = parse("(float[4,4] x) => (float y) { [a] a = MatMul(x, w) [b] y = Relu(a) }", w=(4, 4))
    with ThreadPoolExecutor(2) as executor:
        result = optimize(
            model,
            backends=["dnnl", "tvm"],
            target=_TARGET,
            costs=tmp_path / "c.sqlite",
            executor=executor,
            rounds=0,
        )
    assert result.comparison is None
    assert result.chosen == "mix"
    assert result.costs.measured >= 4
    with CostDatabase(tmp_path / "c.sqlite") as database:
        costs = [c for c in database.items() if c.key.kind != ORIGINAL]
    assert len(costs) == result.costs.measured


def test_weights_of_other_values_share_costs(parse: Parse, tmp_path: Path) -> None:
    text = "(float[4,64] x) => (float y) { [a] y = MatMul(x, w) }"
    costs = tmp_path / "c.sqlite"
    first, second = (
        optimize(parse(text, w=w), backends=["dnnl"], target=_TARGET, costs=costs, rounds=0)
        for w in (np.eye(64, dtype=np.float32), np.ones((64, 64), np.float32))
    )
    assert first.costs.measured
    assert not second.costs.measured


def test_an_open_dimension_is_named(parse: Parse) -> None:
    model = parse("(float[batch,4] x) => (float y) { [a] y = Relu(x) }")
    with pytest.raises(ModelError, match=r"'?x'?.*batch"):
        optimize(model, backends=[])
    result = optimize(model, backends=[], shapes={"x": (2, 4)}, rounds=0)
    assert result.graph.shape_of("y") == (2, 4)


def test_a_pin_that_nobody_honours(parse: Parse) -> None:
    model = parse("(float[4] x) => (float y) { [a] y = CumSum(x, axis) }", axis=np.array(0))
    with pytest.raises(
        PlacementError, match=r"node 'a' \(CumSum\) is pinned to 'dnnl', which does not offer"
    ):
        optimize(model, backends=["dnnl"], constraints=Constraints({"a": "dnnl"}), rounds=0)
    with pytest.raises(PlacementError, match=r"node 'a' .* pinned to 'tvm', which does not take part"):
        optimize(model, backends=["dnnl"], constraints=Constraints({"a": "tvm"}), rounds=0)


def test_a_graph_goes_in_as_it_is(placed: Optimization) -> None:
    again = optimize(placed.graph, backends=["dnnl"], target=_TARGET, rounds=3)
    assert again.graph is placed.graph
    assert again.costs.measured == 0
    assert Subgraph(again.graph, NodeSet(n.id for n in again.graph.nodes)).nodes == placed.graph.nodes


_ALONE = """
import sys
from pathlib import Path
from collage_core import Target, optimize

if __name__ == "__main__":
    result = optimize(sys.argv[1], target=Target("cpu", 1), costs=sys.argv[2], rounds=2)
    assert result.costs.measured and result.comparison.measured
    print("backends", *{backend for _, _, backend in result.costs.kernels})
    print("modules", *sys.modules)
    print("maps", Path("/proc/self/maps").read_text().replace("\\n", " "))
"""


def test_the_process_of_optimize_loads_no_vendor_library(parse: Parse, tmp_path: Path) -> None:
    model = parse(
        """(float[1,8,8,8] x) => (float y) {
            [c] c = Conv<pads=[1,1,1,1]>(x, w)
            [r] r = Relu(c)
            [t] y = Transpose<perm=[0,3,2,1]>(r)
        }""",
        w=(8, 8, 3, 3),
    )
    onnx.save(model, tmp_path / "m.onnx")
    command = [sys.executable, "-c", _ALONE, str(tmp_path / "m.onnx"), str(tmp_path / "c.sqlite")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    backends, modules, maps = (line.split()[1:] for line in said.splitlines())
    assert {"dnnl", "tvm"} <= set(backends)
    assert not {"ncnn", "tvm", "tvm_ffi", "onnxruntime", "openvino"} & set(modules)
    vendors = re.compile("dnnl|tvm|onnxruntime|openvino|mkl|ncnn|gomp|iomp")
    assert not [m for m in maps if vendors.search(m.rpartition("/")[2])]
