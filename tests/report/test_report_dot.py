"""A placement in Graphviz's language."""

from __future__ import annotations

import re

from converted_placement import converted, report_of

from collage_core.report.dot import BEGINS, COLOURS, colours_of, placement_dot, where, width_of


def test_clusters_are_groups_and_edges_pass_conversions() -> None:
    dot = placement_dot(report_of(*converted(), model="m.onnx"))
    assert dot.startswith(f'{BEGINS}digraph "m.onnx" {{\n')
    assert dot.endswith("}\n")
    clusters = re.findall(
        r'subgraph (cluster_\d) { label="([^"]*)"; tooltip="([^"]*)"; color="(#\w+)".*?(n\d \[.*\]) }', dot
    )
    assert [(c, label, formats) for c, label, formats, _, _ in clusters] == [
        ("cluster_0", "0 swift 0.5000 ms\\n512 kFLOP/s, 640 kB/s", "float32:plain -> float32:0231"),
        ("cluster_1", "1 swift 0.2500 ms\\n128 kFLOP/s, 768 kB/s", "float32:0231 -> bfloat16:0231"),
        (
            "cluster_2",
            "2 other 2.0000 ms\\n16 kFLOP/s, 192 kB/s",
            "float32:plain float32:plain -> float32:plain",
        ),
        ("cluster_3", "3 view 0.0000 ms\\n-, -", "float32:plain -> float32:plain"),
    ]
    assert clusters[0][3] == clusters[1][3] != clusters[2][3]
    edges = re.findall(r"^  (.+) -> (\S+|\"[^\"]*\") \[label=\"([^\"]*)\" color=\"(\S+)\"", dot, re.M)
    assert [(a, b, label) for a, b, label, _ in edges] == [
        ('"in x"', "n0", "64 B"),
        ("n0", "n1", "128 B"),
        ("n0", "c0", "128 B"),
        ("c0", "n2", "128 B"),
        ("n1", "c1", "64 B"),
        ("c1", "c2", "128 B"),
        ("c2", "n2", "128 B"),
        ("n2", "n3", "128 B"),
        ("n3", '"out f"', "128 B"),
        ("c0", '"out c"', "128 B"),
    ]
    assert edges[1][3] != edges[2][3], "what is converted is of another colour"


def test_names_are_quoted() -> None:
    dot = placement_dot(report_of(*converted(), model='a "b"\\'))
    assert 'digraph "a \\"b\\"\\\\" {' in dot
    assert '[label="Relu\\nre\\"lu\\\\"]' in dot


def test_braces_and_quotes_are_balanced() -> None:
    dot = re.sub(r'"(?:[^"\\]|\\.)*"', "", placement_dot(report_of(*converted())))
    assert '"' not in dot
    assert dot.count("{") == dot.count("}") == 1 + 4


def test_colours_go_by_name() -> None:
    reports = [
        {"groups": [{"backend": n} for n in names], "conversions": [{"backend": "d"}]}
        for names in ("ca", "b")
    ]
    assert colours_of(*reports) == dict(zip("abcd", COLOURS, strict=False))


def test_more_backends_than_colours() -> None:
    report = {"groups": [{"backend": f"b{i:02}"} for i in range(12)], "conversions": []}
    assert len(set(colours_of(report).values())) == len(COLOURS) + 1


def test_another_device_is_named() -> None:
    group = {"backend": "swift", "device": "far"}
    assert where({"device": "cpu"}, group) == "swift on far"
    assert where({"device": "far"}, group) == where({}, group) == "swift"


def test_edges_grow_as_their_bytes_double() -> None:
    assert [width_of(n) for n in (None, 0, 1 << 16, 1 << 17, 1 << 20)] == [1, 1, 1, 1.5, 3]
