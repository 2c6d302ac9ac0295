"""A placement in Graphviz's language."""

from __future__ import annotations

import re

from converted_placement import converted, report_of

from collage_core.report.dot import COLOURS, colours_of, placement_dot


def test_clusters_are_groups_and_edges_pass_conversions() -> None:
    dot = placement_dot(report_of(*converted(), model="m.onnx"))
    assert dot.startswith('digraph "m.onnx" {\n')
    assert dot.endswith("}\n")
    clusters = re.findall(r'subgraph (cluster_\d) { label="([^"]*)"; color="(#\w+)".*?(n\d \[.*\]) }', dot)
    assert [(c, label) for c, label, _, _ in clusters] == [
        ("cluster_0", "0 swift 0.5000 ms"),
        ("cluster_1", "1 swift 0.2500 ms"),
        ("cluster_2", "2 other 2.0000 ms"),
        ("cluster_3", "3 view 0.0000 ms"),
    ]
    assert clusters[0][2] == clusters[1][2] != clusters[2][2]
    edges = re.findall(r"^  (.+) -> (\S+|\"[^\"]*\") \[label=\"([^\"]*)\"", dot, re.M)
    assert [(a, b) for a, b, _ in edges] == [
        ('"in x"', "n0"),
        ("n0", "n1"),
        ("n0", "c0"),
        ("c0", "n2"),
        ("n1", "c1"),
        ("c1", "c2"),
        ("c2", "n2"),
        ("n2", "n3"),
        ("n3", '"out f"'),
        ("c0", '"out c"'),
    ]


def test_names_are_quoted() -> None:
    dot = placement_dot(report_of(*converted(), model='a "b"\\'))
    assert dot.startswith('digraph "a \\"b\\"\\\\" {')
    assert '[label="Relu\\nre\\"lu\\\\"]' in dot


def test_braces_and_quotes_are_balanced() -> None:
    dot = re.sub(r'"(?:[^"\\]|\\.)*"', "", placement_dot(report_of(*converted())))
    assert '"' not in dot
    assert dot.count("{") == dot.count("}") == 1 + 4


def test_colours_go_by_name() -> None:
    report = {"groups": [{"backend": n} for n in "cab"], "conversions": [{"backend": "d"}]}
    assert colours_of(report) == dict(zip("abcd", COLOURS, strict=False))


def test_more_backends_than_colours() -> None:
    report = {"groups": [{"backend": f"b{i:02}"} for i in range(12)], "conversions": []}
    assert len(set(colours_of(report).values())) == len(COLOURS) + 1
