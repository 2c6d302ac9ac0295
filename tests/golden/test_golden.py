"""Printed forms, held against files: graph, pattern, placement, result, explanation.

`python -m pytest tests/golden --update-golden` writes the files anew; look at the difference before you
commit it.
Nothing here is measured: the costs are made up, so that the text is the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from simulated_sittings import details_of_ms

from collage_core import (
    Backend,
    BackendInfo,
    BackendKind,
    BackendPattern,
    Candidate,
    CostRecord,
    Costs,
    Kernel,
    Optimization,
    PatternRule,
    Placement,
    Refusal,
    Subgraph,
    Target,
    Variant,
    channels_last,
    dominates,
    find_matches,
    formulate,
    generate,
    generate_candidates,
    is_constant,
    is_op,
    is_tuple_get_item,
    kBroadcast,
    outputs,
    plain_variant,
    wildcard,
)
from collage_core.formats import Format
from collage_core.ir import Graph, Operator, OpKind, from_model
from collage_core.measuring.comparison import Comparison
from collage_core.measuring.end_to_end import PARTS
from collage_core.patterns import Pattern, match_all
from collage_core.pipeline.optimize import Single
from collage_core.placement import VIEW
from collage_core.reference import ReferenceBackend
from collage_core.report.summary import optimization_json, placement_json
from collage_core.report.text import explain_text, optimization_text
from collage_core.search import OpLevelSearch, SearchResult
from collage_core.search.formulate import needed_conversions
from collage_core.search.transitions import Transitions

if TYPE_CHECKING:
    from tests.conftest import Golden

_TARGET = Target("cpu", 2)

_MODEL = """<ir_version: 10, opset_import: ["" : 21]>
network (float[1,4,8,8] image) => (float top, float[1,4,8,8] kept) {
    [stem] c = Conv<pads=[1,1,1,1]>(image, w)
    [stem_relu] kept = Relu(c)
    [branch] d = Conv<pads=[1,1,1,1]>(kept, v, b)
    [join] a = Add(d, kept)
    [cap] capped = Clip(a, , six)
    [flat] f = Flatten(capped)
    [halves] left, right = Split<axis=1, num_outputs=2>(f)
    [difference] e = Sub(left, right)
    [running] s = CumSum(e, one)
    [soft] top = Softmax(s)
}"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = onnx.parser.parse_model(_MODEL)
    constants = {"w": (4, 4, 3, 3), "v": (4, 4, 3, 3), "b": (4,)}
    arrays = {name: np.ones(shape, np.float32) for name, shape in constants.items()}
    for name, array in {**arrays, "six": np.float32(6), "one": np.int64(1)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return from_model(model)


def test_graph(golden: Golden, graph: Graph) -> None:
    parts = [str(graph), "operators, as rules see them"]
    parts += [
        f"  {Operator(graph, n)}: {Operator(graph, n).name}, {Operator(graph, n).kind.name}"
        for n in graph.nodes
    ]
    whole = Subgraph(graph, graph.all_nodes)
    group = Subgraph(graph, [n.id for n in graph.nodes[2:4]])
    parts += ["subgraphs", f"  {whole}", f"  {group!r}: {group.inputs} {group.constants} -> {group.outputs}"]
    symbolic = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> open (float[N,3] x) => (float[N,3] y) { y = Relu(x) }'
    )
    golden("graph.txt", "\n".join([*parts, str(from_model(symbolic))]))


def _patterns() -> dict[str, Pattern]:
    x, convolution = wildcard(), is_op("conv2d")(wildcard(), is_constant())
    activated = convolution.optional(lambda a: is_op("relu")(a))
    split = is_op("split")(wildcard(), None)
    return {
        "convolution": convolution,
        "activated": activated,
        "strided": convolution.has_attr({"strides": 2, "groups": 1}),
        "typed": is_op("clip")(wildcard().has_dtype("float32"), None, is_constant()).has_shape(
            (1, None, 8, 8)
        ),
        "residual": is_op("add")(convolution, x) | is_op("subtract")(x, x),
        "leaking": is_op("conv2d")(is_op("relu")(wildcard()), is_constant(), is_constant()),
        "square": is_op("multiply")(x, x),
        "reaching": dominates(convolution, is_op("add") | is_op("clip"), is_op("batch_flatten")),
        "halves": is_op("subtract")(is_tuple_get_item(split, 0), is_tuple_get_item(split, 1)),
        "twice": outputs(is_op("relu")(convolution), convolution),
        "foreign": is_op("Fancy", "ours"),
    }


def test_pattern(golden: Golden, graph: Graph) -> None:
    """Patterns, what they match, and the nearest misses."""
    lines = []
    for name, pattern in _patterns().items():
        result = match_all(graph, pattern)
        lines += [f"{name}: {pattern!r}"]
        lines += [f"  match: {m}, of {m.subgraph!r}" for m in result.matches]
        lines += [f"  miss: {m}" for m in result.misses]
    golden("pattern.txt", "\n".join(lines))


class Swift(Backend):
    """Runs convolutions with what follows, channels-last; converts."""

    name = "swift"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1.0", "7.2")

    def patterns(self) -> Sequence[BackendPattern]:
        return [
            BackendPattern(self.name, is_op("split"), check=lambda m: Refusal("no splits", m.root.node.name))
        ]

    def rules(self) -> Sequence[PatternRule]:
        def valid_op(op: Operator) -> bool:
            return op.name in ("conv2d", "add", "relu", "clip")

        def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool | Refusal:
            return sink.kind <= kBroadcast or Refusal(f"nothing fuses {sink.op_type}", sink.node.name)

        return [PatternRule(self.name, valid_op, fusion_rule, "chains")]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        def last(values: Sequence[str]) -> tuple[Format, ...]:
            return tuple(channels_last("float32", subgraph.graph.shape_of(v)) for v in values)

        formats = last(subgraph.inputs), last(subgraph.outputs)
        convolves = subgraph.nodes[0].op_type == "Conv"
        return [Variant(*formats), *([Variant(*formats, _OTHER_WAY)] if convolves else [])]

    def converts(self, *_: object) -> bool:
        return True

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError


class Plain(Backend):
    """Runs most single operators, row-major."""

    name = "plain"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "2.1", "2.1")

    def patterns(self) -> Sequence[BackendPattern]:
        known = ("Conv", "Relu", "Add", "Clip", "Split", "Sub", "Softmax")
        return [BackendPattern(self.name, is_op(op)) for op in known]

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError


_OTHER_WAY = (("algorithm", "winograd"),)
_KERNEL_MS = {"swift": 0.125, "plain": 0.5, "reference": 4.0}


def _record(candidate: Candidate) -> CostRecord:
    """Made-up costs: by backend, and a little for each operator; one group crashes."""
    ops = [n.op_type for n in candidate.subgraph.nodes]
    if ops == ["Conv", "Add", "Clip"]:
        return CostRecord("crashed", reason="the worker died of SIGSEGV")
    median_ms = _KERNEL_MS[candidate.backend] + 0.015625 * sum(map(len, ops))
    median_ms *= 2 if candidate.variant.options else 1
    return CostRecord("ok", median_ms, median_ms / 64, 30, error=1e-6, seconds=0.5)


def _optimization(graph: Graph) -> Optimization:
    backends: list[Backend] = [Swift(), Plain(), ReferenceBackend()]
    candidates = generate_candidates(graph, backends, _TARGET)
    kernels = {
        (c.subgraph.key, str(c.variant), c.backend): _record(c)
        for c in candidates.candidates
        if c.backend != VIEW
    }
    conversions = {
        key: {"swift": CostRecord("ok", 0.0625, 0.001, 30)}
        for key in needed_conversions(graph, candidates.candidates)
    }
    costs = Costs(kernels, conversions, measured=17, cached=4, measure_s=12.5)
    costs.transitions = Transitions(
        {"swift": 0.001953125, "plain": 0.00390625}, {"swift": 0.0078125, "plain": 0.015625}
    )
    formulation = formulate(candidates, costs.record_of, costs.converters(), costs.transitions)
    solution = OpLevelSearch().solve(formulation.problem)
    mix = formulation.placement(solution)
    # In place as predicted, but for one group that takes twice its time.
    parts_ms = [(part.cost_ms or 0.0) * (2 if i == 0 else 1) for i, part in enumerate(mix.groups)]
    parts_ms += [part.cost_ms or 0.0 for part in mix.conversions]
    measured = {"collage": 6.25, "plain+reference": 7.5}
    details = {"max_abs_error": 2e-6, PARTS: parts_ms}
    turns_ms = {"collage": [[6.25] * 3] * 8, "plain+reference": [[7.5, 9.375, 7.5], [11.25] * 3] * 4}
    records = {
        n: CostRecord("ok", ms, ms / 32, 30, 3e-6, details={**details, **details_of_ms(turns_ms[n])})
        for n, ms in measured.items()
    }
    singles = (
        Single("swift", None, alone=False, reason="no backend can run node 'soft' (Softmax)"),
        Single("plain", mix, alone=False),
    )
    return Optimization(
        graph=graph,
        placement=mix,
        chosen="mix",
        singles=singles,
        candidates=candidates,
        costs=costs,
        op_level=SearchResult(mix, solution),
        second_level=None,
        comparisons=(Comparison(records, measured=True),),
        rejected=(),
        beaten_by=(),
        search_s=0.0125,
        total_s=20.0,
    )


def test_placement(golden: Golden, graph: Graph) -> None:
    """As `collage explain` prints one made by hand, and as JSON, which reads back as the same placement."""
    placement = _optimization(graph).placement
    text = json.dumps(placement.to_json())
    assert Placement.from_json(json.loads(text)) == placement
    short = (
        text.replace('{"backend"', '\n  {"backend"').replace('{"value"', '\n  {"value"').replace(" \n", "\n")
    )
    golden("placement.txt", f"{explain_text(placement_json(graph, placement))}\n\n{short}")


def test_explain(golden: Golden, graph: Graph) -> None:
    """What `collage explain` prints of an optimisation: what was declined and what failed, too."""
    report = optimization_json(_optimization(graph), "network.onnx")
    golden("explain.txt", explain_text(json.loads(json.dumps(report))))


def test_optimize(golden: Golden, graph: Graph) -> None:
    """What `collage optimize` prints of the same."""
    report = optimization_json(_optimization(graph), "network.onnx")
    golden("optimize.txt", optimization_text({**json.loads(json.dumps(report)), "output": "network.collage"}))


def test_what_is_told_of_each_part_makes_the_prediction(graph: Graph) -> None:
    report = optimization_json(_optimization(graph), "network.onnx")
    parts = (*report["groups"], *report["conversions"])
    parts_ms = [part["predicted_ms"] for part in parts]
    crossings_ms = report["prediction"]["terms_ms"]["crossings"]
    assert sum(parts_ms) + crossings_ms == pytest.approx(report["predicted_ms"])
    assert sum(s["ms"] for s in report["shares"].values()) == pytest.approx(sum(parts_ms))
    assert sum(parts_ms) > sum(part["cost_ms"] for part in parts), "constants are in it"


def test_the_inputs_show_what_they_should(graph: Graph) -> None:
    """The files are worth having: every section that an explanation can have is in them."""
    report = optimization_json(_optimization(graph), "network.onnx")
    assert set(report["shares"]) == {"swift", "plain", "reference", VIEW}
    for section in ("conversions", "fallback", "infeasible", "declined", "singles"):
        assert report[section]
    rivals = [r for g in report["groups"] for r in g["rivals"]]
    assert {r["cost_ms"] is None for r in rivals} == {True, False}
    assert any(str(r["reason"]).startswith("declined: ") for r in rivals)
    assert any(g["ways"] for g in report["groups"])
    swift = Swift().rules()[0]
    assert len(generate(graph, swift).groups) > 3
    assert sum(bool(find_matches(graph, p)) for p in _patterns().values()) >= 6
