"""Whether a file is a bundle already."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from collage_core import Bundle, BundleError, Group, Placement, Subgraph, Target, plain_variant, save
from collage_core.ir import Graph, from_model
from collage_core.runtime.bundle import holds, read

_MODEL = """<ir_version: 10, opset_import: ["" : 20]> g (float[8,600] x) => (float[8,600] z) {
    y = Add(x, w) z = Relu(y)
}"""


def _graph(least: float = 0.0, count: int = 600) -> Graph:
    model = onnx.parser.parse_model(_MODEL.replace("600", str(count)))
    weights = np.linspace(least, 1.0, count, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return from_model(model)


def _bundle(graph: Graph, cost_ms: float = 1.0) -> Bundle:
    groups = [
        Group("reference", (n.id,), plain_variant(Subgraph(graph, [n.id])), cost_ms, 0.0) for n in graph.nodes
    ]
    terms_ms = {"kernels": 2 * cost_ms, "groups": 0.0}
    placement = Placement(tuple(groups), (), Target("cpu", 1), predicted_ms=2 * cost_ms, terms_ms=terms_ms)
    report = {"groups": [], "search": {"total_s": 3.0}}
    return Bundle(graph, placement, report, singles={"reference": placement})


def test_a_file_holds_what_was_saved_there(tmp_path: Path) -> None:
    bundle = _bundle(_graph())
    save(bundle, tmp_path / "m.collage")
    assert holds(tmp_path / "m.collage", bundle)
    terms_ms = dict(reversed(list(bundle.placement.terms_ms.items())))
    same = replace(bundle, placement=replace(bundle.placement, terms_ms=terms_ms))
    assert holds(tmp_path / "m.collage", same), "recalled in another order"
    later = replace(bundle, report={**bundle.report, "search": {"total_s": 0.1}})
    assert not holds(tmp_path / "m.collage", later)
    assert holds(tmp_path / "m.collage", later, whatever=["search"])


@pytest.mark.parametrize(
    "other",
    [
        lambda: _bundle(_graph(0.5)),
        lambda: _bundle(_graph(), cost_ms=2.0),
        lambda: replace(_bundle(_graph()), singles={}),
        lambda: replace(_bundle(_graph()), report={"groups": ["another"], "search": {}}),
        lambda: replace(_bundle(_graph()), origin={"processor": "another"}),
        lambda: _bundle(_graph(count=1200)),
        lambda: _bundle(_graph(count=300)),
    ],
    ids=["weights", "costs", "singles", "report", "origin", "more weights", "fewer weights"],
)
def test_it_holds_nothing_else(tmp_path: Path, other: Callable[[], Bundle]) -> None:
    save(_bundle(_graph()), tmp_path / "m.collage")
    assert not holds(tmp_path / "m.collage", other(), whatever=["search"])


@pytest.mark.parametrize("name", ["a" * 300, "x\0y"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        BundleError, match=r"cannot write .*: (File name too long|no file can have that name)"
    ):
        save(_bundle(_graph()), tmp_path / name)
    with pytest.raises(BundleError, match=r"name too long|no such file"):
        read(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_is_damaged_or_no_bundle_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.collage"
    bundle = _bundle(_graph())
    assert not holds(path, bundle), "it is not there"
    save(bundle, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("further", b"")
    assert not holds(path, bundle), "there is something else in it"
    assert not holds(tmp_path, bundle), "it is a folder"
    os.mkfifo(tmp_path / "pipe")
    assert not holds(tmp_path / "pipe", bundle), "nobody waits for a pipe"
    save(bundle, path)
    whole = path.read_bytes()
    weights = whole.index(np.linspace(0.0, 1.0, 600, dtype=np.float32)[1:9].tobytes())
    for damaged in (
        whole[: len(whole) // 2],
        whole[:weights] + b"\0" * 8 + whole[weights + 8 :],
        whole.replace(b"reference", b"r3ference", 1),
        b"",
        b"PK\3\4" + b"\0" * 100,
    ):
        assert damaged != whole
        path.write_bytes(damaged)
        assert not holds(path, bundle)
