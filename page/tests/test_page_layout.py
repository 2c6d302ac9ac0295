"""Where boxes lie: beside each other, in layers, the same each time."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import combinations, pairwise

import pytest
from collage_page.layout import Drawing, layered
from hypothesis import given
from hypothesis import strategies as st

Boxes = dict[str, tuple[float, float]]
Edges = list[tuple[str, str]]

_GAP = 10.0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Boxes, Edges]:
    """Acyclic: edges go from a smaller number to a larger one."""
    count = draw(st.integers(1, 14))
    size = st.floats(1.0, 300.0, width=32)
    boxes = {f"b{i}": (draw(size), draw(size)) for i in range(count)}
    pairs = list(combinations(range(count), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=25)) if pairs else []
    return boxes, [(f"b{a}", f"b{b}") for a, b in chosen]


def _overlap(boxes: Boxes, drawing: Drawing, a: str, b: str) -> bool:
    (ax, ay), (bx, by) = drawing.centres[a], drawing.centres[b]
    (aw, ah), (bw, bh) = boxes[a], boxes[b]
    return abs(ax - bx) < (aw + bw) / 2 - 1e-3 and abs(ay - by) < (ah + bh) / 2 - 1e-3


@given(graphs())
def test_no_box_lies_on_another_and_edges_go_down(graph: tuple[Boxes, Edges]) -> None:
    boxes, edges = graph
    drawing = layered(boxes, edges, _GAP)
    assert drawing.centres.keys() == boxes.keys()
    assert not [(a, b) for a, b in combinations(boxes, 2) if _overlap(boxes, drawing, a, b)]
    for name, (x, y) in drawing.centres.items():
        width, height = boxes[name]
        assert width / 2 - 1e-3 <= x <= drawing.width - width / 2 + 1e-3
        assert height / 2 - 1e-3 <= y <= drawing.height - height / 2 + 1e-3
    for a, b in {*edges} - drawing.far:
        points = [drawing.centres[a], *drawing.ways.get((a, b), ()), drawing.centres[b]]
        heights = [y for _, y in points]
        assert heights == sorted(heights)
        assert len(set(heights)) == len(heights)


@given(graphs())
def test_an_edge_over_several_layers_passes_between_boxes(graph: tuple[Boxes, Edges]) -> None:
    boxes, edges = graph
    drawing = layered(boxes, edges, _GAP)
    for points in drawing.ways.values():
        for x, y in points:
            for name, (cx, cy) in drawing.centres.items():
                width, height = boxes[name]
                assert abs(x - cx) > width / 2 or abs(y - cy) > height / 2


def test_edges_over_too_many_layers_are_left_out() -> None:
    """A mask that every block of a decoder reads, and as many operators again."""
    count = 1000
    names = [f"b{i}" for i in range(count)]
    chain = list(pairwise(names))
    shared = [("mask", name) for name in names[::2]]
    begun_s = time.process_time()
    drawing = layered(dict.fromkeys(["mask", *names], (100.0, 30.0)), [*chain, *shared], _GAP)
    took_s = time.process_time() - begun_s
    assert not drawing.far & {*chain}
    assert ("mask", "b2") not in drawing.far
    assert ("mask", "b998") in drawing.far
    assert sum(map(len, drawing.ways.values())) <= 3 * (count + 1)
    assert drawing.width < 10_000
    assert took_s < 5


def test_a_circle_is_drawn_as_well() -> None:
    drawing = layered(dict.fromkeys("abc", (20.0, 10.0)), [("a", "b"), ("b", "c"), ("c", "a")], _GAP)
    assert drawing.centres.keys() == {*"abc"}


def test_a_signal_that_comes_meanwhile_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise SystemError("a result with an exception set") from KeyboardInterrupt()

    monkeypatch.setattr("fast_sugiyama.from_edges", interrupted)
    with pytest.raises(KeyboardInterrupt):
        layered(dict.fromkeys("ab", (20.0, 10.0)), [("a", "b")], _GAP)


def test_of_nothing_there_is_nothing() -> None:
    assert layered({}, [], _GAP) == Drawing({}, {}, frozenset(), 0.0, 0.0)


def test_boxes_that_nothing_links_stand_in_a_row() -> None:
    drawing = layered({"a": (20.0, 10.0), "b": (40.0, 30.0)}, [("a", "a")], _GAP)
    assert drawing.centres == {"a": (10.0, 5.0), "b": (50.0, 15.0)}
    assert (drawing.width, drawing.height) == (70.0, 30.0)


def test_a_chain_stands_in_one_column() -> None:
    drawing = layered(dict.fromkeys("abc", (20.0, 10.0)), [("a", "b"), ("b", "c")], _GAP)
    assert drawing.centres == {"a": (10.0, 5.0), "b": (10.0, 25.0), "c": (10.0, 45.0)}


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_however_names_are_hashed(seed: str) -> None:
    program = (
        "from collage_page.layout import layered\n"
        "boxes = {f'b{i}': (10.0 + i, 20.0) for i in range(12)}\n"
        "edges = [(f'b{a}', f'b{b}') for a in range(12) for b in range(a + 1, 12) if (a * b) % 3 == 0]\n"
        "drawing = layered(boxes, edges, 10.0)\n"
        "print(drawing._replace(far=sorted(drawing.far)))"
    )
    command = [sys.executable, "-c", program]
    told = [
        subprocess.run(command, env={"PYTHONHASHSEED": s}, capture_output=True, text=True, check=True).stdout
        for s in ("0", seed)
    ]
    assert told[0] == told[1]
