"""Operators, inputs, attributes and alternatives in patterns: what matches, and why a near miss does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from pattern_matches import found, miss

from collage_core.errors import CollageError
from collage_core.ir import Graph, Operator
from collage_core.patterns import (
    Match,
    dominates,
    find_matches,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    match,
    match_all,
    wildcard,
)
from collage_core.patterns.matcher import Matcher

if TYPE_CHECKING:
    from tests.patterns.conftest import Parse


@pytest.fixture
def conv_relu(parse: Parse) -> Graph:
    return parse(
        "(float[1,3,8,8] x) => (float y) { [conv] c = Conv<pads=[1,1,1,1]>(x, w) [relu] y = Relu(c) }",
        w=(4, 3, 3, 3),
    )


def test_chain(conv_relu: Graph) -> None:
    conv = is_op("conv2d")(wildcard(), is_constant())
    assert found(conv_relu, is_op("relu")(conv)) == [{"conv", "relu"}]
    result = match(is_op("relu")(conv), conv_relu, conv_relu.node_named("relu"))
    assert isinstance(result, Match)
    assert result.root.node.name == "relu"
    assert result.operator(conv).node.name == "conv"
    assert result.subgraph.inputs == ("x",)
    assert result.subgraph.constants == ("w",)
    assert result.subgraph.outputs == ("y",)


def test_chain_misses_other_operator(conv_relu: Graph) -> None:
    result = miss(conv_relu, is_op("sigmoid")(is_op("conv2d")(wildcard(), wildcard())), "relu")
    assert (result.node, result.reason) == ("relu", "expected sigmoid, but it is a Relu")
    result = miss(conv_relu, is_op("relu")(is_op("conv3d")(wildcard(), wildcard())), "relu")
    assert (result.node, result.reason) == ("conv", "expected conv3d, but it has 2 spatial dimensions, not 3")
    assert result.progress == 1


def test_wildcard_leaves_the_producer_out(conv_relu: Graph) -> None:
    anything = wildcard()
    (m,) = find_matches(conv_relu, is_op("relu")(anything))
    assert [n.name for n in m.subgraph.nodes] == ["relu"]
    assert m.bindings[anything] == "c"


def test_wildcard_alone_claims_no_operator(conv_relu: Graph) -> None:
    assert find_matches(conv_relu, wildcard()) == []
    assert "not for an operator" in miss(conv_relu, wildcard(), "relu").reason


def test_constant(conv_relu: Graph, parse: Parse) -> None:
    assert found(conv_relu, is_op("Conv")(wildcard(), is_constant())) == [{"conv"}]
    graph = parse("(float[1,3,8,8] x, float[4,3,3,3] w) => (float y) { [conv] y = Conv(x, w) }")
    result = miss(graph, is_op("Conv")(wildcard(), is_constant()), "conv")
    assert (result.node, result.reason) == ("conv", "expected a constant, but 'w' is not constant")


def test_value_computed_by_nobody(conv_relu: Graph) -> None:
    pattern = is_op("conv2d")(is_op("relu")(wildcard()), wildcard())
    assert miss(conv_relu, pattern, "conv").reason == "expected relu, but no operator computes 'x'"


def test_optional_inputs_need_no_mention(parse: Parse) -> None:
    text = "(float[1,3,8,8] x) => (float y) { [conv] y = Conv(x, w, b) }"
    graph = parse(text, w=(4, 3, 3, 3), b=(4,))
    assert found(graph, is_op("conv2d")(wildcard(), wildcard())) == [{"conv"}]
    assert found(graph, is_op("conv2d")(wildcard(), wildcard(), is_constant())) == [{"conv"}]


def test_required_inputs_need_mention(conv_relu: Graph, parse: Parse) -> None:
    result = miss(conv_relu, is_op("conv2d")(wildcard()), "conv")
    assert (
        result.reason
        == "expected conv2d, but the pattern does not mention its input 1, which is not optional"
    )
    result = miss(conv_relu, is_op("conv2d")(wildcard(), wildcard(), wildcard()), "conv")
    assert result.reason == "expected conv2d, but it has 2 inputs, not 3"
    graph = parse("(float[2] a, float[2] b, float[2] c) => (float y) { [cat] y = Concat<axis=0>(a, b, c) }")
    result = miss(graph, is_op("concatenate")(wildcard(), wildcard()), "cat")
    assert "does not mention its input 2" in result.reason


def test_none_skips_an_optional_input(parse: Parse) -> None:
    graph = parse("(float[4] x) => (float y) { [clip] y = Clip(x, , m) }", m=np.float32(6.0).reshape(()))
    assert found(graph, is_op("clip")(wildcard(), None, is_constant())) == [{"clip"}]
    result = miss(graph, is_op("clip")(wildcard(), is_constant(), is_constant()), "clip")
    assert result.reason == "expected a constant, but that input is absent"


def test_none_mentions_nothing(parse: Parse) -> None:
    clip = is_op("clip")(wildcard(), None, None)
    for inputs in ("x", "x, m", "x, m, m", "x, , m"):
        graph = parse(
            f"(float[4] x) => (float y) {{ [clip] y = Clip({inputs}) }}", m=np.float32(6.0).reshape(())
        )
        assert found(graph, clip) == [{"clip"}]
    graph = parse("(float[4] x) => (float y) { [clip] y = Clip(x) }")
    result = miss(graph, is_op("clip")(wildcard(), None, wildcard()), "clip")
    assert result.reason == "expected clip, but it has 1 inputs, not 3"
    graph = parse("(float[4] x, float[4] z) => (float y) { [add] y = Add(x, z) }")
    assert "does not mention its input 1" in miss(graph, is_op("add")(wildcard(), None), "add").reason


def test_uncalled_takes_any_inputs(parse: Parse) -> None:
    graph = parse("(float[2] a, float[2] b) => (float y) { [cat] y = Concat<axis=0>(a, b, a) }")
    assert found(graph, is_op("concatenate")) == [{"cat"}]


def test_tuple_argument_is_spread(parse: Parse) -> None:
    graph = parse("(float[2] a, float[2] b) => (float y) { [r] c = Relu(a) [cat] y = Concat<axis=0>(c, b) }")
    assert found(graph, is_op("concatenate")(is_tuple([is_op("relu")(wildcard()), wildcard()]))) == [
        {"r", "cat"}
    ]


@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Min", "Sum", "Mean"])
def test_commutative_in_either_order(parse: Parse, op: str) -> None:
    for inputs in ("r, b", "b, r"):
        graph = parse(f"(float[2] a, float[2] b) => (float y) {{ [r] r = Relu(a) [op] y = {op}({inputs}) }}")
        assert found(graph, is_op(op)(is_op("relu")(wildcard()), wildcard())) == [{"r", "op"}]
        assert found(graph, is_op(op)(wildcard(), is_op("relu")(wildcard()))) == [{"r", "op"}]


@pytest.mark.parametrize("op", ["Sub", "Div", "Pow"])
def test_others_in_their_order(parse: Parse, op: str) -> None:
    graph = parse(f"(float[2] a, float[2] b) => (float y) {{ [r] r = Relu(a) [op] y = {op}(b, r) }}")
    assert found(graph, is_op(op)(wildcard(), is_op("relu")(wildcard()))) == [{"r", "op"}]
    result = miss(graph, is_op(op)(is_op("relu")(wildcard()), wildcard()), "op")
    assert result.reason == "expected relu, but no operator computes 'b'"


def test_commutative_finds_both_operands(parse: Parse) -> None:
    graph = parse(
        "(float[2] a, float[2] b) => (float y) { [p] p = Relu(a) [q] q = Relu(b) [add] y = Add(p, q) }"
    )
    assert found(graph, is_op("add")(is_op("relu")(wildcard()), wildcard())) == [{"p", "add"}, {"q", "add"}]


def test_shared_wildcard_is_one_value(parse: Parse) -> None:
    graph = parse("(float[2] a, float[2] b) => (float y) { [same] s = Mul(a, a) [other] y = Mul(s, b) }")
    x = wildcard()
    assert found(graph, is_op("multiply")(x, x)) == [{"same"}]
    assert "stands for" in miss(graph, is_op("multiply")(x, x), "other").reason
    assert found(graph, is_op("multiply")(wildcard(), wildcard())) == [{"same"}, {"other"}]


def test_shared_operator_is_one_operator(parse: Parse) -> None:
    graph = parse(
        "(float[2] a, float[2] b) => (float y) { [p] p = Relu(a) [q] q = Relu(b) [sub] y = Sub(p, q) }"
    )
    relu = is_op("relu")(wildcard())
    result = miss(graph, is_op("subtract")(relu, relu), "sub")
    assert (result.node, result.reason) == (
        "sub",
        "expected relu, but that part stands for 'p' already, not for 'q'",
    )
    assert found(graph, is_op("subtract")(is_op("relu")(wildcard()), is_op("relu")(wildcard()))) == [
        {"p", "q", "sub"}
    ]


def test_shared_operator_is_a_diamond(parse: Parse) -> None:
    graph = parse("(float[2] a) => (float y) { [r] r = Relu(a) [s] s = Sigmoid(r) [mul] y = Mul(r, s) }")
    relu = is_op("relu")(wildcard())
    assert found(graph, is_op("multiply")(is_op("sigmoid")(relu), relu)) == [{"r", "s", "mul"}]
    apart = is_op("multiply")(is_op("sigmoid")(is_op("relu")(wildcard())), is_op("relu")(wildcard()))
    assert (
        miss(graph, apart, "mul").reason
        == "expected relu, but another part of the pattern stands for it already"
    )


def test_has_attr(conv_relu: Graph) -> None:
    conv = is_op("conv2d")(wildcard(), wildcard())
    assert found(conv_relu, conv.has_attr({"padding": (1, 1), "strides": 1, "data_layout": "NCHW"})) == [
        {"conv"}
    ]
    result = miss(conv_relu, conv.has_attr({"groups": 2}), "conv")
    assert result.reason == "expected conv2d.has_attr({'groups': 2}), but its groups is 1, not 2"
    result = miss(conv_relu, conv.has_attr({"colour": 2}), "conv")
    assert "it has no attribute 'colour'" in result.reason
    result = miss(conv_relu, is_op("conv2d")(wildcard().has_attr({"axis": 0}), wildcard()), "conv")
    assert "nothing computes it" in result.reason


def test_attributes_before_the_call(conv_relu: Graph) -> None:
    before = is_op("conv2d").has_attr({"groups": 1})(wildcard(), wildcard())
    assert before == is_op("conv2d")(wildcard(), wildcard()).has_attr({"groups": 1})
    assert found(conv_relu, before) == [{"conv"}]


def test_has_shape(conv_relu: Graph) -> None:
    assert found(conv_relu, is_op("relu")(wildcard().has_shape((1, None, 8, 8)))) == [{"relu"}]
    result = miss(conv_relu, is_op("relu")(wildcard().has_shape((1, 4, 8))), "relu")
    assert (result.node, result.reason) == (
        "conv",
        "expected any value.has_shape((1, 4, 8)), but its shape is (1, 4, 8, 8), not (1, 4, 8)",
    )
    assert found(conv_relu, is_op("relu")(wildcard()).has_shape((1, 4, 8, 9))) == []


def test_has_dtype(conv_relu: Graph) -> None:
    assert found(conv_relu, is_op("relu")(wildcard()).has_dtype(np.float32)) == [{"relu"}]
    result = miss(conv_relu, is_op("relu")(wildcard()).has_dtype("float16"), "relu")
    assert result.reason.endswith("but its dtype is float32, not float16")


def test_alternatives(conv_relu: Graph) -> None:
    conv = is_op("conv2d")(wildcard(), wildcard())
    assert found(conv_relu, is_op("sigmoid")(conv) | is_op("relu")(conv)) == [{"conv", "relu"}]
    assert found(conv_relu, is_op("relu")(is_op("conv3d") | is_op("conv2d"))) == [{"conv", "relu"}]
    result = miss(conv_relu, is_op("sigmoid") | is_op("tanh"), "relu")
    assert result.reason == "expected sigmoid, but it is a Relu"


def test_constraints_of_a_choice(conv_relu: Graph) -> None:
    for shape, wanted in (((1, 4, 8, 8), [{"conv", "relu"}]), ((1, 4, 8, 9), [])):
        conv = is_op("conv2d")(wildcard(), wildcard())
        assert found(conv_relu, is_op("relu")((is_op("tanh") | conv).has_shape(shape))) == wanted
        assert found(conv_relu, is_op("relu")(is_tuple_get_item(conv, 0).has_shape(shape))) == wanted
        part = dominates(conv, None, is_op("relu"))
        assert found(conv_relu, part.has_shape(shape)) == wanted
        assert found(conv_relu, (is_op("tanh") | part).has_shape(shape)) == wanted


def test_optional(conv_relu: Graph) -> None:
    conv = is_op("conv2d")(wildcard(), wildcard())
    pattern = conv.optional(lambda x: is_op("relu")(x))
    assert found(conv_relu, pattern) == [{"conv"}, {"conv", "relu"}]
    twice = pattern.optional(lambda x: is_op("sigmoid")(x))
    assert found(conv_relu, twice) == [{"conv"}, {"conv", "relu"}]
    with pytest.raises(CollageError, match="does not contain the pattern"):
        conv.optional(lambda x: is_op("relu")(wildcard()))


def test_optional_prefers_the_longer(conv_relu: Graph) -> None:
    inner = wildcard().optional(lambda x: is_op("conv2d")(x, wildcard()))
    result = match(is_op("relu")(inner), conv_relu, conv_relu.node_named("relu"))
    assert isinstance(result, Match)
    assert {n.name for n in result.subgraph.nodes} == {"conv", "relu"}


@pytest.mark.parametrize(
    ("alias", "reason"),
    [
        ("conv3d", "it has 2 spatial dimensions, not 3"),
        ("dense", "its second operand is not a constant matrix"),
        ("batch_matmul", "its operands have 2 and 2 dimensions, not 3 or more"),
        ("bias_add", "no operand is a constant vector"),
    ],
)
def test_why_an_alias_does_not_fit(parse: Parse, alias: str, reason: str) -> None:
    graph = parse(
        "(float[1,3,8,8] x, float[2,2] p, float[2,2] q) => (float y, float m, float s)"
        "{ [conv3d] y = Conv(x, w) [dense] m = MatMul(p, q) [batch_matmul] n = MatMul(p, q)"
        " [bias_add] s = Add(n, q) }",
        w=(4, 3, 3, 3),
    )
    assert miss(graph, is_op(alias), alias).reason == f"expected {alias}, but {reason}"


def test_other_domains(parse: Parse) -> None:
    graph = parse("(float[4] x) => (float[4] y) { [ours] y = ours.Fancy(x) }")
    assert found(graph, is_op("Fancy", domain="ours")(wildcard())) == [{"ours"}]
    result = miss(graph, is_op("relu")(wildcard()), "ours")
    assert result.reason == "expected relu, but it is a ours.Fancy"


def test_order_matters_in_other_domains(parse: Parse) -> None:
    graph = parse("(float[4] x) => (float[4] y) { [r] r = Relu(x) [ours] y = ours.Add(x, r) }")
    relu = is_op("relu")(wildcard())
    assert found(graph, is_op("Add", domain="ours")(wildcard(), relu)) == [{"r", "ours"}]
    assert found(graph, is_op("Add", domain="ours")(relu, wildcard())) == []


def test_the_first_way_is_kept(parse: Parse) -> None:
    graph = parse("(float[2] a, float[2] b) => (float y) { [add] y = Add(a, b) }")
    x = wildcard()
    pattern = is_op("add")(x, wildcard() | is_constant())
    (m,) = find_matches(graph, pattern)
    first = match(pattern, graph, graph.nodes[0])
    assert isinstance(first, Match)
    assert m.bindings[x] == first.bindings[x] == "a"


def test_match_all_tells_why_not(conv_relu: Graph) -> None:
    result = match_all(conv_relu, is_op("relu")(is_op("tanh")(wildcard())))
    assert result.matches == ()
    assert [str(m) for m in result.misses] == ["conv: expected tanh, but it is a Conv"]


def test_bindings_by_object_and_by_equality(parse: Parse) -> None:
    graph = parse("(float[2] a, float[2] b) => (float y) { [sub] y = Sub(a, b) }")
    left, right = wildcard(), wildcard()
    (m,) = find_matches(graph, is_op("subtract")(left, right))
    assert (m.bindings[left], m.bindings[right]) == ("a", "b")
    with pytest.raises(KeyError):
        m.bindings[wildcard()]
    root = m.bindings[is_op("sub")(wildcard(), wildcard())]
    assert isinstance(root, Operator)
    with pytest.raises(TypeError, match="stands for the value 'a'"):
        m.operator(left)


def test_interchangeable_operands_are_tried_in_one_order(parse: Parse) -> None:
    graph = parse("(float[2] a, float[2] b) => (float y) { [sum] y = Sum(a, b, a, b, a, b, a, b, a, b) }")
    everything = is_op("Sum")(*(wildcard() for _ in range(10)))
    assert len(list(Matcher(graph, everything).matches(graph.nodes[0]))) == 1
