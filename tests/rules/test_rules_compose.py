"""Rules made from rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from collage_core.errors import Refusal
from collage_core.ir import Graph, Operator, OpKind, Subgraph
from collage_core.rules import (
    PatternRule,
    for_backend,
    generate,
    kElemwise,
    kFusable,
    restrict,
    restrict_kinds,
    restrict_size,
    union,
)

Parse = Callable[..., Graph]


def always(*_: object) -> bool:
    return True


def singles(cur_type: OpKind, src: Operator, sink: Operator) -> bool:
    return False


@pytest.fixture
def chain(parse: Parse) -> Graph:
    text = "{ [conv] c = Conv(x, w) [r] r = Relu(c) [s] s = Sigmoid(r) [n] y = Neg(s) }"
    return parse(f"(float[1,3,8,8] x) => (float y) {text}", w=(4, 3, 3, 3))


def groups(graph: Graph, *rules: PatternRule) -> set[str]:
    return {"+".join(n.name for n in Subgraph(graph, g).nodes) for g in generate(graph, rules).groups}


ALL = PatternRule("b", always, always)
EVERYTHING = {"conv", "conv+r", "conv+r+s", "conv+r+s+n", "r", "r+s", "r+s+n", "s", "s+n", "n"}


def test_everything(chain: Graph) -> None:
    assert groups(chain, ALL) == EVERYTHING


def test_union(chain: Graph) -> None:
    pairs = restrict_size(ALL, max_nodes=2, min_nodes=2)
    one = PatternRule("b", lambda op: op.op_type == "Neg", singles)
    assert groups(chain, *union(pairs, [one, one])) == groups(chain, pairs) | {"n"}
    assert union(pairs, [one, one], one) == (pairs, one)


def test_restrict_kinds(chain: Graph) -> None:
    assert groups(chain, restrict_kinds(ALL, [kFusable])) == {g for g in EVERYTHING if "conv" in g}
    assert groups(chain, restrict_kinds(ALL, [kElemwise])) == {g for g in EVERYTHING if "conv" not in g}
    assert groups(chain, restrict_kinds(restrict_kinds(ALL, [kElemwise]), [kFusable])) == set()
    refusals = generate(chain, restrict_kinds(ALL, [kFusable])).refusals
    assert Refusal("groups of kind ELEMWISE are not asked for", "n") in refusals


def test_restrict_size(chain: Graph) -> None:
    def size(g: str) -> int:
        return g.count("+") + 1

    assert groups(chain, restrict_size(ALL, max_nodes=2)) == {g for g in EVERYTHING if size(g) <= 2}
    assert groups(chain, restrict_size(ALL, min_nodes=3)) == {g for g in EVERYTHING if size(g) >= 3}
    twice = restrict_size(restrict_size(ALL, max_nodes=3), max_nodes=4, min_nodes=2)
    assert groups(chain, twice) == {g for g in EVERYTHING if 2 <= size(g) <= 3}


def test_restrict(chain: Graph) -> None:
    def ends_in_neg(subgraph: Subgraph) -> Refusal | None:
        return None if subgraph.nodes[-1].op_type == "Neg" else Refusal("it does not end in Neg")

    assert groups(chain, restrict(ALL, ends_in_neg)) == {g for g in EVERYTHING if g.endswith("n")}


def test_for_backend() -> None:
    other = PatternRule("other", always, always)
    assert for_backend([ALL, other], "OTHER") == (other,)
