"""Every construct of the pattern language: what it matches, and the reason that a near miss gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from collage_core.errors import CollageError, Refusal
from collage_core.ir import Graph, Operator
from collage_core.patterns import (
    Match,
    NoMatch,
    Pattern,
    dominates,
    find_matches,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    match,
    match_all,
    outputs,
    wildcard,
)
from collage_core.patterns.matcher import Matcher

Parse = Callable[..., Graph]


def found(graph: Graph, pattern: Pattern) -> list[set[str]]:
    """The names of the nodes of every match."""
    return [{n.name for n in m.subgraph.nodes} for m in find_matches(graph, pattern)]


def miss(graph: Graph, pattern: Pattern, node: str) -> NoMatch:
    result = match(pattern, graph, graph.node_named(node))
    assert isinstance(result, NoMatch)
    assert isinstance(result, Refusal)
    assert not result
    return result


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


def test_inner_result_read_outside_leaks(parse: Parse) -> None:
    graph = parse("(float[2] a) => (float y) { [r] r = Relu(a) [s] s = Sigmoid(r) [add] y = Add(r, s) }")
    result = miss(graph, is_op("sigmoid")(is_op("relu")(wildcard())), "s")
    assert (result.node, result.reason) == (
        "r",
        "its result 'r' leaks: 'add', outside the match, reads it too",
    )
    assert result.expected is None


def test_inner_result_returned_leaks(parse: Parse) -> None:
    graph = parse("(float[2] a) => (float r, float y) { [r] r = Relu(a) [s] y = Sigmoid(r) }")
    result = miss(graph, is_op("sigmoid")(is_op("relu")(wildcard())), "s")
    assert (result.node, result.reason) == ("r", "its result 'r' leaks: the graph returns it")


def test_wildcard_is_not_inside(parse: Parse) -> None:
    graph = parse("(float[2] a) => (float y) { [r] r = Relu(a) [add] y = Add(r, r) }")
    result = miss(graph, is_op("add")(is_op("relu")(wildcard()), wildcard()), "add")
    assert result.node == "r"
    assert result.reason == "a wildcard stands for 'r', which the match itself computes"


def test_not_convex(parse: Parse) -> None:
    graph = parse(
        "(float[2] a) => (float y, float z)"
        "{ [r] r = Relu(a) [out] z = Neg(r) [back] b = Sigmoid(z) [add] y = Add(r, b) }"
    )
    relu = is_op("relu")(wildcard())
    result = miss(graph, outputs(is_op("add")(relu, wildcard()), relu), "add")
    assert result.reason == "the match is not convex: a path leaves it and comes back"


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


def test_dominates(parse: Parse) -> None:
    graph = parse(
        "(float[1,3,8,8] x, float[1,4,6,6] z) => (float y)"
        "{ [conv] c = Conv(x, w) [r] r = Relu(c) [s] s = Sigmoid(c) [m] m = Mul(r, z) [add] y = Add(m, s) }",
        w=(4, 3, 3, 3),
    )
    conv = is_op("conv2d")(wildcard(), wildcard())
    unary = is_op("relu")(wildcard()) | is_op("sigmoid")(wildcard())
    path = unary | is_op("multiply")(wildcard(), wildcard())
    add = is_op("add")(wildcard(), wildcard())
    everything = {"conv", "r", "s", "m", "add"}
    assert found(graph, add.dominates(conv, path)) == [everything]
    assert found(graph, dominates(conv, None, add)) == [everything]
    result = miss(graph, add.dominates(conv, unary), "add")
    assert result.node == "conv"
    assert result.reason.endswith("but not every way from it to 'add' is such a path")


def test_dominates_by_one_way_only(parse: Parse) -> None:
    graph = parse(
        "(float[2] x) => (float y) { [t] t = Tanh(x) [r] r = Relu(t) [s] s = Sigmoid(t) [add] y = Add(r, s) }"
    )
    pattern = is_op("add")(wildcard(), wildcard()).dominates(
        is_op("tanh")(wildcard()), is_op("relu")(wildcard())
    )
    result = miss(graph, pattern, "add")
    assert (result.node, result.reason) == (
        "t",
        "expected relu, but not every way from it to 'add' is such a path",
    )


def test_dominates_needs_something_before(parse: Parse) -> None:
    graph = parse("(float[2] x) => (float y) { [n] y = Neg(x) }")
    result = miss(graph, is_op("negative")(wildcard()).dominates(is_op("relu")), "n")
    assert (result.node, result.reason) == ("n", "expected relu, but no operator stands before 'n'")


def test_dominates_in_a_row(parse: Parse) -> None:
    """The end of one dominated part is another: its wildcards may stand for what the first computes."""
    graph = parse(
        "(float[1,3,8,8] x) => (float y)"
        "{ [conv] c = Conv(x, w) [r] r = Relu(c) [exp] e = Exp(r) [n] n = Neg(e) [soft] y = Softmax(n) }",
        w=(4, 3, 3, 3),
    )
    later = dominates(is_op("exp")(wildcard()), is_op("negative"), is_op("softmax")(wildcard()))
    pattern = dominates(is_op("conv2d")(wildcard(), wildcard()), is_op("relu"), later)
    assert found(graph, pattern) == [{"conv", "r", "exp", "n", "soft"}]


def test_dominates_an_end_that_names_the_parent(parse: Parse) -> None:
    graph = parse(
        "(float[1,3,8,8] x) => (float y) { [conv] c = Conv(x, w) [r] r = Relu(c) [add] y = Add(c, r) }",
        w=(4, 3, 3, 3),
    )
    conv = is_op("conv2d")(wildcard(), wildcard())
    pattern = is_op("add")(conv, wildcard()).dominates(conv, is_op("relu"))
    assert found(graph, pattern) == [{"conv", "r", "add"}]


def test_dominated_part_as_an_input(parse: Parse) -> None:
    graph = parse(
        "(float[4] x) => (float y, float a)"
        "{ [t] t = Tanh(x) [r] r = Relu(t) [split] a, b = Split<num_outputs=2>(r) [n] y = Neg(b) }"
    )
    for index, wanted in ((0, []), (1, [{"t", "r", "split", "n"}])):
        split = is_op("split")
        part = dominates(is_op("tanh")(wildcard()), is_op("relu"), is_tuple_get_item(split, index))
        assert found(graph, outputs(is_op("negative")(part), is_tuple_get_item(split, 0))) == wanted
    result = miss(graph, is_op("negative")(dominates(is_op("tanh"), None, is_op("split"))), "n")
    assert (result.node, result.reason) == (
        "split",
        "expected split after tanh, but 'b' is another output of it",
    )


def test_a_path_does_not_pass_what_another_part_stands_for(parse: Parse) -> None:
    for inputs in ("r, a", "a, r"):
        graph = parse(
            "(float[2] x) => (float y)"
            f"{{ [t] t = Tanh(x) [r] r = Relu(t) [add] a = Add(r, t) [sub] y = Sub({inputs}) }}"
        )
        part = is_op("add")(wildcard(), wildcard()).dominates(is_op("tanh"), is_op("relu"))
        args = (is_op("relu"), part) if inputs == "r, a" else (part, is_op("relu"))
        assert found(graph, is_op("subtract")(*args)) == []


def test_an_end_that_shares_with_the_rest(parse: Parse) -> None:
    graph = parse(
        "(float[2] x) => (float y){ [t] t = Tanh(x) [r] r = Relu(t) [add] a = Add(r, t) [sub] y = Sub(r, a) }"
    )
    relu = is_op("relu")
    part = is_op("add")(relu, wildcard()).dominates(is_op("tanh"), is_op("negative"))
    assert found(graph, is_op("subtract")(relu, part)) == [{"t", "r", "add", "sub"}]


def test_a_wildcard_that_is_outside_somewhere_is_outside(parse: Parse) -> None:
    """The end's wildcards may stand for values from inside, but not if the parent has the same wildcard."""
    graph = parse("(float[2] x) => (float y) { [r] r = Relu(x) [mul] m = Mul(r, r) [sub] y = Sub(r, m) }")
    a, relu = wildcard(), is_op("relu")(wildcard())
    end = is_op("subtract")(a, wildcard())
    assert found(graph, end.dominates(is_op("multiply")(relu, relu))) == [{"r", "mul", "sub"}]
    result = miss(graph, end.dominates(is_op("multiply")(relu, a)), "sub")
    assert result.reason == "a wildcard stands for 'r', which the match itself computes"


def test_dominates_needs_all_ways(parse: Parse) -> None:
    graph = parse(
        "(float[1,3,8,8] x) => (float y, float z)"
        "{ [conv] c = Conv(x, w) [r] r = Relu(c) [s] z = Sigmoid(c) [n] y = Neg(r) }",
        w=(4, 3, 3, 3),
    )
    pattern = is_op("negative")(wildcard()).dominates(is_op("conv2d"), is_op("relu"))
    assert miss(graph, pattern, "n").reason == "its result 'c' leaks: 's', outside the match, reads it too"


def test_outputs(parse: Parse) -> None:
    graph = parse("(float[2] a) => (float y, float z) { [r] r = Relu(a) [n] y = Neg(r) [s] z = Sigmoid(r) }")
    relu = is_op("relu")(wildcard())
    both = outputs(is_op("negative")(relu), is_op("sigmoid")(relu))
    (m,) = find_matches(graph, both)
    assert {n.name for n in m.subgraph.nodes} == {"r", "n", "s"}
    assert m.subgraph.outputs == ("y", "z")
    assert found(graph, is_op("negative")(relu)) == []
    assert found(graph, outputs(is_op("negative")(relu), relu)) == [{"r", "n"}]
    result = miss(graph, outputs(is_op("negative")(relu), is_op("tanh")(relu)), "n")
    assert result.reason.startswith("expected tanh, but it is a")


def test_outputs_of_one_input(parse: Parse) -> None:
    graph = parse(
        "(float[2,4] x) => (float p, float q, float r)"
        "{ [p] p = MatMul(x, a) [q] q = MatMul(x, b) [r] r = MatMul(x, c) }",
        a=(4, 4),
        b=(4, 4),
        c=(4, 4),
    )
    x = wildcard()
    dense = [is_op("dense")(x, is_constant()) for _ in range(3)]
    assert found(graph, outputs(*dense)) == [{"p", "q", "r"}]


def test_outputs_must_share(parse: Parse) -> None:
    graph = parse("(float[2] a) => (float y, float z) { [n] y = Neg(a) [s] z = Sigmoid(a) }")
    result = miss(graph, outputs(is_op("negative")(wildcard()), is_op("sigmoid")(wildcard())), "n")
    assert result.reason == "expected sigmoid, but no operator reads what the other outputs share with it"


def test_output_of_an_operator(parse: Parse) -> None:
    graph = parse(
        "(float[4] x) => (float y, float z)"
        "{ [split] a, b = Split<num_outputs=2>(x) [n] y = Neg(a) [m] z = Neg(b) }"
    )
    split = is_op("split")
    assert found(graph, split) == [{"split"}]
    both = is_op("negative")(is_tuple_get_item(split, 0)), is_op("negative")(is_tuple_get_item(split, 1))
    assert found(graph, outputs(*both)) == [{"split", "n", "m"}]
    result = miss(graph, is_op("negative")(is_tuple_get_item(split, 0)), "m")
    assert result.reason == "expected output 0 of split, but 'b' is its output 1"
    result = miss(graph, is_op("negative")(is_op("split")), "m")
    assert result.reason == "expected split, but 'b' is not its first output"
    assert "leaks" in miss(graph, is_tuple_get_item(split, 0), "split").reason


def test_several_outputs_of_one_operator(parse: Parse) -> None:
    graph = parse(
        "(float[4] x) => (float y, float z)"
        "{ [split] a, b = Split<num_outputs=2>(x) [n] y = Neg(a) [m] z = Neg(b) }"
    )
    split = is_op("split")(wildcard(), None)
    both = is_tuple([is_tuple_get_item(split, 0), is_tuple_get_item(split, 1)])
    assert found(graph, both) == [{"split"}]
    result = miss(graph, is_tuple([is_tuple_get_item(split, 0), is_tuple_get_item(split, 2)]), "split")
    assert result.reason == "expected output 2 of split, but it has no output 2"


def test_any_output_is_not_only_the_first(parse: Parse) -> None:
    graph = parse("(float[4] x) => (float y) { [split] a, b = Split<num_outputs=2>(x) [m] y = Neg(b) }")
    assert found(graph, is_tuple_get_item(is_op("split"))) == [{"split"}]
    assert found(graph, is_tuple_get_item(is_op("split"), 0)) == []


def test_an_option_not_taken_as_another_output(parse: Parse) -> None:
    graph = parse("(float[2] a) => (float y, float z) { [r] r = Relu(a) [n] y = Neg(r) [s] z = Sigmoid(r) }")
    relu = is_op("relu")(wildcard())
    pattern = outputs(is_op("negative")(relu), relu.optional(lambda x: is_op("sigmoid")(x)))
    assert sorted(map(sorted, found(graph, pattern))) == [["n", "r"], ["n", "r", "s"]]


def test_a_dominated_part_among_the_outputs(parse: Parse) -> None:
    """A dominated part has any height: the search for its end stops where the graph does."""
    graph = parse(
        "(float[2] a) => (float y, float z)"
        "{ [r] r = Relu(a) [n] y = Neg(r) [s] s = Sigmoid(r) [t] t = Tanh(s) [e] z = Exp(t) }"
    )
    relu = is_op("relu")(wildcard())
    pattern = outputs(is_op("negative")(relu), dominates(relu, None, is_op("exp")))
    assert found(graph, pattern) == [{"r", "n", "s", "t", "e"}]


def test_an_absent_first_output_has_no_shape(parse: Parse) -> None:
    graph = parse("(float[4] x) => (float y) { [split] , b = Split<num_outputs=2>(x) [m] y = Neg(b) }")
    assert "first output is absent" in miss(graph, is_op("split").has_shape((2,)), "split").reason
    assert "first output is absent" in miss(graph, is_op("split").has_dtype("float32"), "split").reason
    assert found(graph, is_op("negative")(is_tuple_get_item(is_op("split"), 1))) == [{"split", "m"}]


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
