"""Groups for graph libraries: legal, connected, and as large as they can be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lines_run import lines_run

from collage_core.candidates import offloaded_groups


def masks(*reads: Sequence[int]) -> list[int]:
    return [sum(1 << p for p in r) for r in reads]


def members(mask: int) -> set[int]:
    return {n for n in range(mask.bit_length()) if mask >> n & 1}


def sets(predecessors: Sequence[int], labels: Sequence[int]) -> list[tuple[int, list[int]]]:
    return [(label, sorted(members(nodes))) for label, nodes in offloaded_groups(predecessors, labels)]


@st.composite
def labelled_graphs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    count = draw(st.integers(0, 24))
    span = draw(st.integers(1, 6))
    predecessors = [
        sum(1 << n - d for d in draw(st.sets(st.integers(1, min(n, span)), max_size=3))) if n else 0
        for n in range(count)
    ]
    label = st.integers(0, draw(st.integers(1, 3)))
    return predecessors, draw(st.lists(label, min_size=count, max_size=count))


def quotient(predecessors: Sequence[int], groups: Sequence[set[int]]) -> dict[int, set[int]]:
    """Group index -> the groups that it reads from; each kept node is a group of its own behind the given."""
    home = {n: g for g, group in enumerate(groups) for n in group}
    for n in range(len(predecessors)):
        home.setdefault(n, len(groups) + n)
    edges: dict[int, set[int]] = {g: set() for g in home.values()}
    for n, reads in enumerate(predecessors):
        edges[home[n]] |= {home[p] for p in members(reads)} - {home[n]}
    return edges


def is_acyclic(edges: dict[int, set[int]]) -> bool:
    try:
        tuple(TopologicalSorter(edges).static_order())
    except CycleError:
        return False
    return True


many = settings(max_examples=500, deadline=None)


@many
@given(labelled_graphs())
def test_every_labelled_node_is_in_one_group(case: tuple[list[int], list[int]]) -> None:
    predecessors, labels = case
    found = offloaded_groups(predecessors, labels)
    assert sorted(n for _, nodes in found for n in members(nodes)) == [
        n for n, label in enumerate(labels) if label
    ]
    for label, nodes in found:
        assert {labels[n] for n in members(nodes)} == {label}
    assert [nodes & -nodes for _, nodes in found] == sorted(nodes & -nodes for _, nodes in found)


@many
@given(labelled_graphs())
def test_groups_are_connected(case: tuple[list[int], list[int]]) -> None:
    predecessors, labels = case
    for _, nodes in offloaded_groups(predecessors, labels):
        reached, left = {min(members(nodes))}, members(nodes)
        while True:
            more = {
                n for n in left if any(predecessors[n] >> r & 1 | predecessors[r] >> n & 1 for r in reached)
            }
            if more <= reached:
                break
            reached |= more
        assert reached == left


@many
@given(labelled_graphs())
def test_groups_form_an_acyclic_graph_and_no_two_could_be_one(case: tuple[list[int], list[int]]) -> None:
    predecessors, labels = case
    found = offloaded_groups(predecessors, labels)
    groups = [members(nodes) for _, nodes in found]
    edges = quotient(predecessors, groups)
    assert is_acyclic(edges)
    for b, (label, _) in enumerate(found):
        for a in edges[b]:
            if a < len(found) and found[a][0] == label:
                joined = [g for i, g in enumerate(groups) if i not in (a, b)] + [groups[a] | groups[b]]
                assert not is_acyclic(quotient(predecessors, joined))


@many
@given(labelled_graphs())
def test_one_library_for_everything_gets_the_connected_parts(case: tuple[list[int], list[int]]) -> None:
    predecessors, labels = case
    part = list(range(len(labels)))
    for n, reads in enumerate(predecessors):
        for p in members(reads):
            part = [part[p] if q == part[n] else q for q in part]
    found = offloaded_groups(predecessors, [1] * len(labels))
    assert len(found) == len(set(part))
    for _, nodes in found:
        assert len({part[n] for n in members(nodes)}) == 1


def test_a_path_that_comes_back_keeps_a_group_apart() -> None:
    chain_with_a_skip = masks([], [0], [1, 0])
    assert sets(chain_with_a_skip, [1, 0, 1]) == [(1, [0]), (1, [2])]
    assert sets(chain_with_a_skip, [1, 1, 1]) == [(1, [0, 1, 2])]
    assert sets(chain_with_a_skip, [1, 2, 1]) == [(1, [0]), (2, [1]), (1, [2])]


def test_a_knot_of_two_libraries_is_cut_once() -> None:
    knot = masks([], [], [0, 1], [0, 1])
    # {0, 2} and {1, 3} are convex, and each waits for the other.
    assert sets(knot, [1, 2, 1, 2]) == [(1, [0, 2]), (2, [1]), (2, [3])]
    assert sets(knot, [1, 1, 1, 2]) == [(1, [0, 1, 2]), (2, [3])]


def test_a_path_that_became_part_of_the_group_no_longer_keeps_it_apart() -> None:
    # 0 -> 3 is looked at before 0 -> 2 when the edges are taken by reader; both ways round must end as one.
    assert sets(masks([], [0], [0, 1], [0, 2]), [1, 1, 1, 1]) == [(1, [0, 1, 2, 3])]
    assert sets(masks([], [0], [1], [2, 0], [3, 1]), [1] * 5) == [(1, [0, 1, 2, 3, 4])]


def test_siblings_without_an_edge_stay_apart() -> None:
    assert sets(masks([], [0], [0], [1, 2]), [0, 1, 1, 0]) == [(1, [1]), (1, [2])]
    assert sets(masks([], [0], [0], [1, 2]), [0, 1, 1, 1]) == [(1, [1, 2, 3])]


@pytest.mark.parametrize(
    ("predecessors", "labels", "message"),
    [
        ([0], [], "1 nodes cannot have 0 labels"),
        ([1], [1], "node 0 may only read nodes before it"),
        ([0, 2], [1, 1], "node 1 may only read nodes before it"),
        ([0, -1], [1, 1], "node 1 may only read nodes before it"),
        ([0], [-1], "label -1"),
    ],
)
def test_what_is_no_graph_is_refused(predecessors: list[int], labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        offloaded_groups(predecessors, labels)


def lines_of_all(size: int) -> int:
    """Blocks with skips, a long branch beside a long stem, and no structure at all."""
    rng = random.Random(0)
    blocks = [(1 << n - 1 if n else 0) | (1 << n - 4 if n >= 4 and n % 4 == 0 else 0) for n in range(size)]
    fork = [0 if n == 0 else 1 << (0 if n in (1, size // 2) else n - 1) for n in range(size)]
    loose = [sum({1 << rng.randrange(n) for _ in range(2)}) if n else 0 for n in range(size)]
    labellings = (
        [1] * size,
        [rng.randrange(3) for _ in range(size)],
        [int(n >= size // 2) for n in range(size)],
    )
    return sum(
        lines_run(lambda graph=graph, labels=labels: offloaded_groups(graph, labels))[0]  # type: ignore[misc]
        for graph in (blocks, fork, loose)
        for labels in labellings
    )


def test_eight_times_the_graph_takes_some_eight_times_as_many_steps() -> None:
    assert lines_of_all(1000) < 16 * lines_of_all(125), "quadratic is 64"
