"""Patterns as values: equality, hash, printed form, pickling, and what is refused when they are made."""

from __future__ import annotations

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from collage_core import patterns
from collage_core.errors import CollageError
from collage_core.patterns import (
    Pattern,
    dominates,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    outputs,
    wildcard,
)

LANGUAGE = {name: getattr(patterns, name) for name in patterns.__all__}


@st.composite
def random_patterns(draw: st.DrawFn) -> Pattern:
    """Patterns whose parts are drawn from a growing pool, so that they share."""
    pool: list[Pattern] = [wildcard(), is_constant()]
    part = st.deferred(lambda: st.sampled_from(pool))
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.integers(0, 8))
        new: Pattern
        if kind == 0:
            new = wildcard()
        elif kind == 1:
            new = is_op(draw(st.sampled_from(["relu", "Relu", "conv2d"])))
        elif kind == 2:
            new = draw(part).has_attr({"axis": draw(st.integers(0, 1)), "groups": 1})
        elif kind == 3:
            new = draw(part).has_shape((1, None))
        elif kind == 4:
            new = draw(part) | draw(part)
        elif kind == 5:
            base, other = draw(part), draw(part)
            new = base.optional(lambda x, other=other: is_op("add")(x, other))  # type: ignore[misc]  # bound now
        elif kind == 6:
            new = draw(part).dominates(draw(part), draw(st.one_of(st.none(), part)))
        elif kind == 7:
            new = is_tuple_get_item(draw(part), draw(st.one_of(st.none(), st.integers(0, 2))))
        else:
            new = is_op(draw(st.sampled_from(["add", "multiply"])))(draw(part), draw(part))
        pool.append(new)
    return outputs(pool[-1], draw(part)) if draw(st.booleans()) else pool[-1]


@given(random_patterns())
def test_prints_as_the_code_that_makes_it(pattern: Pattern) -> None:
    made = eval(repr(pattern), dict(LANGUAGE))
    assert made == pattern
    assert hash(made) == hash(pattern)
    assert repr(made) == repr(pattern)


@given(random_patterns())
def test_pickles(pattern: Pattern) -> None:
    again = pickle.loads(pickle.dumps(pattern))
    assert again == pattern
    assert hash(again) == hash(pattern)


@given(random_patterns(), random_patterns())
def test_equal_exactly_if_printed_alike(left: Pattern, right: Pattern) -> None:
    canonical = repr(left).replace("'Relu'", "'relu'") == repr(right).replace("'Relu'", "'relu'")
    assert not canonical or left == right


def test_equal_by_structure() -> None:
    assert is_op("relu")(wildcard()) == is_op("Relu")(wildcard())
    assert is_op("nn.conv2d")(wildcard(), wildcard()) == is_op("CONV2D")(wildcard(), wildcard())
    assert is_op("conv2d")(wildcard(), wildcard()) != is_op("Conv")(wildcard(), wildcard())
    assert is_op("relu") != is_op("relu")(wildcard())
    assert is_op("relu")(wildcard()) != is_op("relu")(is_constant())
    assert is_op("relu")(wildcard()).has_dtype("float32") != is_op("relu")(wildcard())
    assert wildcard().has_attr({"a": [1, 2], "b": 3}) == wildcard().has_attr({"b": 3, "a": (1, 2)})


def test_sharing_is_structure() -> None:
    x = wildcard()
    assert is_op("add")(x, x) != is_op("add")(wildcard(), wildcard())
    y = wildcard()
    assert is_op("add")(x, x) == is_op("add")(y, y)


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        is_op("relu").name = "tanh"  # type: ignore[misc]  # this is the point


GOLDENS = [
    (is_op("conv2d")(wildcard(), wildcard()), "is_op('conv2d')(wildcard(), wildcard())"),
    (is_op("Fancy", domain="ours"), "is_op('Fancy', 'ours')"),
    (is_op("clip")(wildcard(), None, is_constant()), "is_op('clip')(wildcard(), None, is_constant())"),
    (
        is_op("conv2d").has_attr({"strides": [2, 2], "groups": 1}),
        "is_op('conv2d').has_attr({'groups': 1, 'strides': (2, 2)})",
    ),
    (
        wildcard().has_shape([1, None]).has_dtype(np.float32),
        "wildcard().has_shape((1, None)).has_dtype('float32')",
    ),
    (is_op("relu") | is_op("tanh") | wildcard(), "((is_op('relu') | is_op('tanh')) | wildcard())"),
    (
        is_op("relu")(wildcard()).optional(lambda a: is_op("add")(a, wildcard())),
        "is_op('relu')(wildcard()).optional(lambda x: is_op('add')(x, wildcard()))",
    ),
    (
        is_op("relu").optional(lambda a: is_op("tanh")(a).optional(lambda b: is_op("add")(a, b))),
        "is_op('relu').optional(lambda x: is_op('tanh')(x).optional(lambda x1: is_op('add')(x, x1)))",
    ),
    (is_op("add").dominates(is_op("conv2d")), "dominates(is_op('conv2d'), None, is_op('add'))"),
    (
        dominates(is_op("dense"), is_op("relu"), is_op("add")),
        "dominates(is_op('dense'), is_op('relu'), is_op('add'))",
    ),
    (is_tuple([is_op("relu")]), "outputs(is_op('relu'))"),
    (is_tuple_get_item(is_op("split"), 1), "is_tuple_get_item(is_op('split'), 1)"),
    (is_tuple_get_item(is_op("split")), "is_tuple_get_item(is_op('split'))"),
]


@pytest.mark.parametrize(("pattern", "text"), GOLDENS, ids=[text for _, text in GOLDENS])
def test_printed_form(pattern: Pattern, text: str) -> None:
    assert repr(pattern) == text


def test_printed_form_names_what_is_shared() -> None:
    x = wildcard()
    relu = is_op("relu")(x)
    assert repr(is_op("add")(relu, is_op("multiply")(relu, x))) == (
        "is_op('add')((p0 := is_op('relu')((p1 := wildcard()))), is_op('multiply')(p0, p1))"
    )


def test_mistakes() -> None:
    with pytest.raises(CollageError, match=r"no operator is called 'conv2'; did you mean conv2d, .*"):
        is_op("conv2")
    with pytest.raises(CollageError, match=r"'max' is ambiguous: say 'Max' \(elementwise\) or 'ReduceMax'"):
        is_op("max")
    with pytest.raises(CollageError, match="has its inputs already"):
        is_op("relu")(wildcard())(wildcard())
    with pytest.raises(CollageError, match="'x' is no pattern"):
        is_op("relu")("x")  # type: ignore[arg-type]  # this is the point
    with pytest.raises(CollageError, match="several outputs cannot be one input"):
        is_op("add")(outputs(is_op("relu")), wildcard())
    with pytest.raises(CollageError, match="at least one"):
        outputs()
    with pytest.raises(CollageError, match="no element type"):
        wildcard().has_dtype(3)
