"""The generator: what it finds, why it stops, and what holds for every group."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from lines_run import lines_run

from collage_core.errors import BackendError, Refusal
from collage_core.ir import Graph, Node, Operator, OpKind, Subgraph, TensorType, Value, ValueKind
from collage_core.rules import (
    PatternRule,
    check_path,
    generate,
    immediate_postdominators,
    kBroadcast,
    kElemwise,
    kFusable,
    kReduction,
    nodes_between,
)

Parse = Callable[..., Graph]


def always(*_: object) -> bool:
    return True


def rule(
    fusion_rule: Callable[[OpKind, Operator, Operator], bool | Refusal] = always, **kwargs: object
) -> PatternRule:
    return PatternRule("b", fusion_rule=fusion_rule, **{"valid_op": always, **kwargs})  # type: ignore[arg-type]  # test data


def names(graph: Graph, given_rule: PatternRule) -> list[str]:
    return ["+".join(n.name for n in Subgraph(graph, g).nodes) for g in generate(graph, given_rule).groups]


@pytest.fixture
def residual(parse: Parse) -> Graph:
    """A convolution whose result goes two ways that meet."""
    return parse(
        "(float[1,3,8,8] x) => (float y)"
        "{ [conv] c = Conv(x, w) [r] r = Relu(c) [s] s = Sigmoid(c) [add] a = Add(r, s) [neg] y = Neg(a) }",
        w=(4, 3, 3, 3),
    )


def test_grows_from_every_operator(residual: Graph) -> None:
    assert names(residual, rule()) == [
        "conv", "conv+r+s+add", "conv+r+s+add+neg",
        "r", "r+add", "r+add+neg",
        "s", "s+add", "s+add+neg",
        "add", "add+neg",
        "neg",
    ]  # fmt: skip


def test_provenance(residual: Graph) -> None:
    result = generate(residual, rule(name="all"))
    last = next(p for g, p in result.groups.items() if len(g) == 4)
    assert (last.start.name, last.end.name, last.kind, last.rule.name) == ("conv", "add", kFusable, "all")
    assert result.refusals == ()


def test_fusion_rule_is_asked_with_kind_end_and_postdominator(residual: Graph) -> None:
    asked = []

    def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool:
        asked.append((cur_type, src.node.name, sink.node.name))
        return True

    generate(residual, rule(fusion_rule))
    assert asked[:2] == [(kFusable, "conv", "add"), (kFusable, "add", "neg")]
    assert asked[2:4] == [(kElemwise, "r", "add"), (kElemwise, "add", "neg")]


def test_invalid_operator_starts_nothing_and_joins_nothing(residual: Graph) -> None:
    def valid_op(op: Operator) -> bool | Refusal:
        return Refusal("no sigmoid here") if op.op_type == "Sigmoid" else True

    result = generate(residual, rule(valid_op=valid_op))
    found = ["+".join(n.name for n in Subgraph(residual, g).nodes) for g in result.groups]
    assert found == ["conv", "r", "r+add", "r+add+neg", "add", "add+neg", "neg"]
    assert [str(r) for r in result.refusals] == ["s: no sigmoid here"]


def test_refused_growth_stops_it(residual: Graph) -> None:
    result = generate(residual, rule(lambda cur, src, sink: sink.op_type != "Neg"))
    assert max(len(g) for g in result.groups) == 4
    assert [str(r) for r in result.refusals] == ["neg: the rule does not let add (Add) grow to it"]


def test_path_is_checked(residual: Graph) -> None:
    def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool | Refusal:
        return check_path(src, sink, lambda op: op.op_type != "Sigmoid")

    result = generate(residual, rule(fusion_rule))
    assert Refusal("it is on the way from conv (Conv) to add (Add)", "s") in result.refusals
    assert names(residual, rule(fusion_rule))[:2] == ["conv", "r"]


def test_elementwise_into_reduction(parse: Parse) -> None:
    graph = parse("(float[2,8] x) => (float y) { [e] e = Exp(x) [n] n = Neg(e) [soft] y = Softmax(n) }")

    def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool | Refusal:
        if cur_type <= kBroadcast and sink.kind <= kReduction:
            return check_path(src, sink, lambda op: op.kind <= kReduction)
        return False

    assert names(graph, rule(fusion_rule)) == ["e", "e+n", "e+n+soft", "n", "n+soft", "soft"]


def test_a_returned_value_ends_growth(parse: Parse) -> None:
    graph = parse("(float[2] x) => (float r, float y) { [r] r = Relu(x) [n] y = Neg(r) }")
    result = generate(graph, rule())
    assert [len(g) for g in result.groups] == [1, 1]
    assert [r.node for r in result.refusals] == ["r"]
    assert "ends in no single operator" in result.refusals[0].reason


def test_max_nodes(residual: Graph) -> None:
    result = generate(residual, rule(max_nodes=3))
    assert max(len(g) for g in result.groups) == 3
    assert (
        Refusal("the group that ends in conv (Conv) would have more than 3 nodes with it", "add")
        in result.refusals
    )
    assert max(len(g) for g in generate(residual, rule(), max_nodes=1).groups) == 1


def test_check_sees_the_whole_group(residual: Graph) -> None:
    def check(subgraph: Subgraph) -> Refusal | None:
        return None if len(subgraph.node_set) != 4 else Refusal("four is unlucky")

    result = generate(residual, rule(check=check))
    assert sorted(len(g) for g in result.groups) == [1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 5]
    assert result.refusals == (Refusal("four is unlucky", "add"),)


def test_a_rule_that_raises_is_named(residual: Graph) -> None:
    def valid_op(op: Operator) -> bool:
        raise KeyError("oops")

    with pytest.raises(
        BackendError, match=r"rule 'bad' of backend 'b' failed at conv \(Conv\): KeyError: 'oops'"
    ):
        generate(residual, rule(valid_op=valid_op, name="bad"))


def test_several_rules_of_one_backend_only(residual: Graph) -> None:
    singles = rule(lambda *_: False)
    both = generate(residual, [singles, rule()])
    assert list(both.groups)[:5] == list(generate(residual, singles).groups)
    assert set(both.groups) == set(generate(residual, rule()).groups)
    with pytest.raises(ValueError, match="several backends"):
        generate(residual, [singles, PatternRule("other", always, always)])


def test_the_first_rule_that_finds_a_group_is_told(residual: Graph) -> None:
    first, second = rule(lambda *_: False, name="first"), rule(name="second")
    result = generate(residual, [first, second])
    assert {len(g): p.rule.name for g, p in result.groups.items() if len(g) < 3} == {1: "first", 2: "second"}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    values, nodes = ["a", "b"], []
    for i in range(draw(st.integers(1, 10))):
        inputs = tuple(draw(st.lists(st.sampled_from(values[-4:]), min_size=1, max_size=2)))
        nodes.append(Node(i, f"n{i}", draw(st.sampled_from(["Sum", "Softmax"])), inputs, (f"v{i}",)))
        values.append(f"v{i}")
    outputs = [v for v in values[2:] if draw(st.integers(0, 4)) == 0]
    kind = TensorType("float32", (2,))
    known = {v: Value(v, kind, ValueKind.INPUT if v in "ab" else ValueKind.INTERMEDIATE) for v in values}
    return Graph("g", nodes, known, ["a", "b"], outputs, {}, {"": 21})


@settings(max_examples=300, deadline=None)
@given(graphs(), st.integers(0, 2**20), st.integers(1, 12))
def test_every_group_is_what_the_definition_says(graph: Graph, seed: int, max_nodes: int) -> None:
    """Groups are the chains of steps to post-dominators that the rule allows, convex and without leaks."""
    invalid = {n.id for n in graph.nodes if (seed >> n.id) % 4 == 0}

    def fusion_rule(cur_type: OpKind, src: Operator, sink: Operator) -> bool:
        return bool((seed >> (src.node.id + sink.node.id) % 20) & 1)

    def valid_op(op: Operator) -> bool:
        return op.node.id not in invalid

    expected = set()
    postdominators = immediate_postdominators(graph)
    for start in graph.nodes:
        group, end = {start.id}, start.id
        while not group & invalid and len(group) <= max_nodes:
            expected.add(frozenset(group))
            sink = postdominators[end]
            if sink is None:
                break
            src_op, sink_op = (Operator(graph, graph.node(i)) for i in (end, sink))
            if not fusion_rule(OpKind.ELEMWISE, src_op, sink_op):
                break
            group |= {sink, *(n.id for n in nodes_between(src_op, sink_op))}
            end = sink
    result = generate(graph, rule(fusion_rule, valid_op=valid_op, max_nodes=max_nodes))
    assert {frozenset(g) for g in result.groups} == expected
    for node_set, provenance in result.groups.items():
        subgraph = Subgraph(graph, node_set, provenance.end.outputs)
        assert subgraph.is_convex
        assert not subgraph.leaks
        assert provenance.kind == max(Operator(graph, n).kind for n in subgraph.nodes)


def test_four_times_the_graph_takes_some_four_times_as_many_steps() -> None:
    """Under a rule that never refuses. Lines are counted, which no other process makes more."""
    few, _ = _generated(500)
    many, groups = _generated(2_000)
    assert groups > 10_000
    assert many < 5 * few, "quadratic is 16"


def _generated(size: int) -> tuple[int, int]:
    """How many lines of Python are run, and how many groups there are, for a chain with skips."""
    kind = TensorType("float32", (2,))
    nodes = [Node(0, "n0", "Relu", ("x",), ("v0",))]
    for i in range(1, size):
        inputs = (f"v{i - 1}", f"v{i - 3}") if i % 5 == 3 else (f"v{i - 1}",)
        nodes.append(Node(i, f"n{i}", "Sum", inputs, (f"v{i}",)))
    known = {v: Value(v, kind, ValueKind.INTERMEDIATE) for n in nodes for v in n.outputs}
    known["x"] = Value("x", kind, ValueKind.INPUT)
    graph = Graph("g", nodes, known, ["x"], [f"v{size - 1}"], {}, {"": 21})
    lines, result = lines_run(lambda: generate(graph, rule(max_nodes=16)))
    return lines, len(result.groups)


def test_a_refusal_is_no_condition() -> None:
    """`if refusal := check():` would accept what was refused."""
    with pytest.raises(TypeError, match=r"a Refusal is no condition; .* It says: relu: too many"):
        bool(Refusal("too many", "relu"))
