"""A placement written to a file, read back, changed by hand, and spoilt by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from numpy_backend import TARGET, graph_of, placement_of

from collage_core import (
    Constraints,
    Conversion,
    Group,
    Placement,
    PlacementFile,
    Registry,
    Target,
    Variant,
    placement_yaml,
    read_placement,
)
from collage_core.errors import CollageError
from collage_core.formats import Format, channels_last, plain
from collage_core.ir import Graph
from collage_core.ir.digests import structure_digest

_GRAPH = graph_of(
    [("Relu", ["x"], "a"), ("Neg", ["a"], "b"), ("Relu", ["b"], "c"), ("Abs", ["c"], "odd: [1]")],
    ["odd: [1]"],
)
_SHAPE = (2, 3, 4, 5)
_PLAIN, _LAST = plain("float32", _SHAPE), channels_last("float32", _SHAPE)

_FILE = """
version: 1
threads: 1
groups:
- backend: pairs
  nodes: [a, b]
  inputs: [float32:plain]
  outputs: [float32:0231]
- backend: singles
  nodes: c
  inputs: [float32:plain]
  outputs: [float32:plain]
- backend: reference
  nodes: ["odd: [1]"]
  inputs: [float32:plain]
  outputs: [float32:plain]
conversions:
- {value: b, from: float32:0231, to: float32:plain, backend: pairs}
"""
_PLACEMENT = Placement(
    (
        Group("pairs", (0, 1), Variant((_PLAIN,), (_LAST,))),
        Group("singles", (2,), Variant((_PLAIN,), (_PLAIN,))),
        Group("reference", (3,), Variant((_PLAIN,), (_PLAIN,))),
    ),
    (Conversion("b", _LAST, _PLAIN, "pairs"),),
    TARGET,
)


def _read(folder: Path, text: str) -> PlacementFile:
    path = folder / "p.yaml"
    path.write_text(text, encoding="utf-8")
    return read_placement(path)


def _placement(
    folder: Path, text: str, registry: Registry, graph: Graph = _GRAPH, target: Target = TARGET
) -> Placement | None:
    file = _read(folder, text)
    return file.placement(graph, file.constraints(graph, registry), target, registry)


def test_read(tmp_path: Path, registry: Registry) -> None:
    found = _placement(tmp_path, _FILE, registry)
    assert found == replace(_PLACEMENT, graph=structure_digest(_GRAPH))


def test_written_and_read(tmp_path: Path, registry: Registry) -> None:
    text = placement_yaml(_GRAPH, _PLACEMENT)
    found = _placement(tmp_path, text, registry)
    assert found is not None
    assert found.digest == _PLACEMENT.digest
    assert placement_yaml(_GRAPH, found) == text
    assert [line for line in text.splitlines() if len(line) > 120] == []


_FORMATS = st.builds(
    Format,
    st.sampled_from(["float32", "bfloat16"]),
    st.permutations(range(4)).map(tuple),
    st.just("cpu"),
)


@given(
    st.lists(st.sampled_from(["pairs", "singles", "reference"]), min_size=4, max_size=4),
    st.lists(_FORMATS, min_size=8, max_size=8),
    st.lists(
        st.tuples(st.sampled_from("xabc"), _FORMATS, _FORMATS), max_size=3, unique_by=lambda c: (c[0], c[2])
    ),
    st.dictionaries(st.text(min_size=1), st.text(), max_size=2),
    st.builds(
        Target,
        st.just("cpu"),
        st.integers(1, 64),
        st.sampled_from([(), ("bfloat16",)]),
        st.sampled_from([(), ("sim",)]),
    ),
)
def test_any_placement_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    backends: list[str],
    formats: list[Format],
    converted: list[tuple[str, Format, Format]],
    options: dict[str, str],
    target: Target,
) -> None:
    import steered_backends

    registry = Registry([steered_backends], entry_points=False)
    groups = [
        Group(b, (i,), Variant((formats[2 * i],), (formats[2 * i + 1],), tuple(sorted(options.items()))))
        for i, b in enumerate(backends)
    ]
    conversions = [Conversion(value, a, b, "pairs") for value, a, b in converted]
    placement = Placement(tuple(groups), tuple(conversions), target)
    folder = tmp_path_factory.mktemp("any", numbered=True)
    file = _read(folder, placement_yaml(_GRAPH, placement))
    assert file.target(Target("cpu", 7)) == target
    found = file.placement(_GRAPH, file.constraints(_GRAPH, registry), target, registry)
    assert found is not None
    assert found.digest == placement.digest


@pytest.mark.parametrize("name", ["a\u0085", "\u5377\u79ef", "a: [b]", "- a", "'", "*", "# a", "a\u2028b"])
def test_names_of_any_letters(name: str, tmp_path: Path, registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], name)], [name])
    placement = placement_of(graph, ["singles"])
    found = _placement(tmp_path, placement_yaml(graph, placement), registry, graph)
    assert found is not None
    assert found.digest == placement.digest


def test_a_view(tmp_path: Path, registry: Registry) -> None:
    graph = graph_of([("Flatten", ["x"], "f"), ("Relu", ["f"], "y")], ["y"])
    placement = placement_of(graph, ["view", "singles"])
    found = _placement(tmp_path, placement_yaml(graph, placement), registry, graph)
    assert found is not None
    assert found.digest == placement.digest


def test_another_name_of_the_same_bytes(tmp_path: Path, registry: Registry) -> None:
    """Where dimensions are one element long, several orders are one format."""
    graph = graph_of([("Relu", ["x"], "y")], ["y"], shape=(1, 16, 1, 1))
    placement = placement_of(graph, ["singles"])
    text = placement_yaml(graph, placement).replace("float32:plain", "float32:0231")
    found = _placement(tmp_path, text, registry, graph)
    assert found is not None
    assert found.digest == placement.digest


def test_groups_are_put_in_order(tmp_path: Path, registry: Registry) -> None:
    whole = yaml.safe_load(_FILE)
    whole["groups"].reverse()
    found = _placement(tmp_path, yaml.safe_dump(whole), registry)
    assert found is not None
    assert [g.nodes for g in found.groups] == [(0, 1), (2,), (3,)]


@pytest.mark.parametrize(
    "change",
    [
        ("conversions:\n- {value: b, from: float32:0231, to: float32:plain, backend: pairs}\n", ""),
        ("  inputs: [float32:plain]\n  outputs: [float32:0231]\n", ""),
        ("  outputs: [float32:0231]\n", ""),
        ("- backend: singles\n  nodes: c\n  inputs: [float32:plain]\n  outputs: [float32:plain]\n", ""),
    ],
)
def test_what_is_left_open_is_no_placement(
    tmp_path: Path, registry: Registry, change: tuple[str, str]
) -> None:
    assert change[0] in _FILE
    assert _placement(tmp_path, _FILE.replace(*change), registry) is None


def test_what_it_asks_for_beside_groups(tmp_path: Path, registry: Registry) -> None:
    text = """
    version: 1
    pins: [{nodes: [a, Abs], backend: Reference}]
    exclude: [{backend: WHOLE}, {backend: pairs, nodes: "[c]"}]
    together: [[b, c], a]
    """
    beside = Constraints(pins={"b": "pairs"}, together=[("a",)])
    file = _read(tmp_path, text)
    assert file.constraints(_GRAPH, registry, beside) == Constraints(
        {"b": "pairs", "a": "reference", "Abs": "reference"},
        [("whole", None), ("pairs", "[c]")],
        [("a",), ("b", "c"), ("a",)],
        [],
    )
    assert file.target(Target("cpu", 3)) == Target("cpu", 3)


def test_names_are_texts_as_they_are_written(tmp_path: Path, registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], "1.50"), ("Relu", ["1.50"], "yes"), ("Relu", ["yes"], "~")], ["~"])
    text = "version: 1\ngroups:\n" + "".join(
        f"- {{backend: singles, nodes: {name}}}\n" for name in ("1.50", "yes", "~")
    )
    file = _read(tmp_path, text)
    assert [g.nodes for g in file.constraints(graph, registry).groups] == [("1.50",), ("yes",), ("~",)]
    written = placement_yaml(graph, placement_of(graph, ["singles"] * 3))
    assert _placement(tmp_path, written, registry, graph) is not None


def _spoilt(old: str, new: str) -> str:
    assert _FILE.count(old) == 1, old
    return _FILE.replace(old, new)


_MISTAKES = {
    "nothing": ("", "nothing is in it"),
    "no YAML": ("version: 1\ngroups: [a, b", ": not YAML: did not find expected"),
    "a tab": ("version: 1\ngroups:\n\t- a", ":3: not YAML: "),
    "no mapping": ("- 1", ":1: the file is no mapping; it has 'version', "),
    "no version": (_spoilt("version: 1\n", ""), "the file lacks 'version'"),
    "a long number": (
        _spoilt("version: 1", "version: " + "9" * 5000),
        "9', and no whole number from 1 to 999",
    ),
    "a long key": ("version: 1\n" + "k" * 1000 + ": 1", "; it has 'version', "),
    "another version": (
        _spoilt("version: 1", "version: 2"),
        ":2: version 2 of the file; this release reads 1",
    ),
    "no number": (
        _spoilt("threads: 1", "threads: many"),
        ":3: 'threads' of the file is 'many', and no whole",
    ),
    "a key mistyped": (_spoilt("groups:", "group:"), ":4: the file has no 'group'; did you mean 'groups'?"),
    "a key unknown": (
        _spoilt("threads:", "cores:"),
        ":3: the file has no 'cores'; it has 'version', 'graph', ",
    ),
    "twice": (_spoilt("threads: 1", "threads: 1\nthreads: 2"), ":4: 'threads' of the file is given twice"),
    "no list": (_spoilt("nodes: [a, b]", "nodes: {a: b}"), ":6: 'nodes' of a group is no list"),
    "no nodes": (_spoilt("nodes: [a, b]", "nodes: []"), ":6: 'nodes' of a group is empty"),
    "nodes missing": (_spoilt("  nodes: [a, b]\n", ""), ":5: a group lacks 'nodes'"),
    "no backend": (_spoilt("backend: singles", "backend:"), ":9: 'backend' of a group is empty"),
    "unknown backend": (
        _spoilt("backend: singles", "backend: sinlges"),
        ":9: unknown backend 'sinlges'; inst",
    ),
    "unknown node": (
        _spoilt("nodes: c", "nodes: d"),
        ":10: no node is named 'd' in graph 'g', nor is it an op",
    ),
    "unknown glob": (_spoilt("nodes: c", "nodes: d*"), ":10: no node's name matches 'd*' in graph 'g'"),
    "twice a node": (_spoilt("nodes: c", "nodes: [b, c]"), ":9: 'b' is in the group of "),
    "twice a node, and so too few formats": (
        _spoilt('nodes: ["odd', 'nodes: [a, "odd'),
        ":13: 'a' is in the group of ",
    ),
    "too many formats": (
        _spoilt("inputs: [float32:plain]\n  outputs: [float32:0231]", "inputs: [a, b]"),
        ":7: 2 formats, where the group has 1: x",
    ),
    "no format": (
        _spoilt("outputs: [float32:0231]", "outputs: [0231]"),
        ":8: '0231' is no format of a value of 4",
    ),
    "another rank": (
        _spoilt("outputs: [float32:0231]", "outputs: [float32:021]"),
        "one is float32:plain, another",
    ),
    "unknown value": (
        _spoilt("value: b", "value: w"),
        ":18: 'w' is no value that the model computes or is given",
    ),
    "twice converted": (
        _FILE + "- {value: b, from: float32:0231, to: float32:plain, backend: reference}\n",
        ":19: 'b' is converted to float32:plain already",
    ),
    "an unknown converter": (_spoilt("backend: pairs}", "backend: piars}"), ":18: unknown backend 'piars'"),
    "a dtype that cannot be": (
        _spoilt("outputs: [float32:0231]", "outputs: [int8:0231]"),
        ":8: 'int8:0231' cannot",
    ),
    "a device unknown": (
        _spoilt("outputs: [float32:0231]", "outputs: ['float32:0231@moon']"),
        ":8: 'float32:0231@",
    ),
    "no view": (_spoilt("backend: singles", "backend: view"), ":10: c computes something, and is no view"),
    "an option twice": (
        _spoilt("nodes: c\n", "nodes: c\n  options: {a: b, a: c}\n"),
        ":11: 'a' of 'options' of a group is given twice",
    ),
    "too many threads": (
        _spoilt("threads: 1", "threads: 2000"),
        ":3: 'threads' of the file is '2000', and no",
    ),
    "an unknown precision": (_spoilt("threads: 1", "precisions: [fp7]"), ": 'fp7' is no precision to store"),
    "pins that disagree": (
        "version: 1\npins:\n- {nodes: '[ab]', backend: pairs}\n- {nodes: '[bc]', backend: singles}",
        ": node 'b' is pinned to 'pairs' by '[ab]' and to 'singles' by '[bc]'",
    ),
    "not one piece": ("version: 1\ntogether: [[a, c]]", ": a, c cannot be one group: a path leaves"),
    "no conversion": (_spoilt("from: float32:0231, ", ""), ":18: a conversion lacks 'from'"),
    "a circle": (
        "version: 1\ngroups:\n- {backend: pairs, nodes: [a, c]}\n- {backend: pairs, nodes: b}",
        "a path leaves them and comes back",
    ),
    "nested": ("version: 1\ngroups: " + "[" * 3000, "not YAML: "),
    "an alias of itself": ("version: 1\ngroups: &g [*g]", ":2: a group is no mapping; it has 'backend', "),
}


@pytest.mark.parametrize("name", _MISTAKES)
def test_mistakes(name: str, tmp_path: Path, registry: Registry) -> None:
    text, said = _MISTAKES[name]

    def all_of_it() -> None:
        file = _read(tmp_path, text)
        file.placement(_GRAPH, file.constraints(_GRAPH, registry), file.target(Target("cpu", 1)), registry)

    with pytest.raises(CollageError) as raised:
        all_of_it()
    message = str(raised.value)
    assert said in message
    assert message.startswith(str(tmp_path / "p.yaml"))
    assert "\n" not in message
    assert len(message.removeprefix(str(tmp_path))) < 500


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CollageError, match=r"cannot read .*: no such file"):
        read_placement(tmp_path / "none.yaml")
    with pytest.raises(CollageError, match=r"cannot read .*: no regular file"):
        read_placement(tmp_path)
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(CollageError, match=r"binary\.yaml"):
        read_placement(path)
