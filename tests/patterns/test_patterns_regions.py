"""What a match covers: paths between operators, several outputs, and no result that leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pattern_matches import found, miss

from collage_core.patterns import (
    dominates,
    find_matches,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    outputs,
    wildcard,
)

if TYPE_CHECKING:
    from tests.patterns.conftest import Parse


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
