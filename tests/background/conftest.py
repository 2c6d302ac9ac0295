"""Sessions whose optimiser finds what a test says, and folders of the tests' own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import background_child
import numpy as np
import pytest
from background_child import Told
from numpy_backend import graph_of

from collage_core import Background, Bundle, Graph, Placement, Session, save
from collage_core.backend import plain_variant
from collage_core.formats import Array
from collage_core.ir import NodeSet, Subgraph
from collage_core.placement import Group
from collage_core.target import Target

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="package", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Costs, temporary files and a measuring lock of the tests' own."""
    folder = tmp_path_factory.mktemp("background")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLAGE_HOME", str(folder))
        patch.setenv("COLLAGE_LOCK", str(folder / "lock"))
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield


def bundle_of(folder: Path, name: str, graph: Graph, *groups: tuple[int, ...]) -> tuple[Path, Placement]:
    """A file in which the reference runs these nodes of a graph together."""
    made = [Group("reference", ids, plain_variant(Subgraph(graph, NodeSet(ids)))) for ids in groups]
    placement = Placement(tuple(made), (), Target("cpu", 1))
    path = folder / f"{name}.collage"
    save(Bundle(graph, placement), path)
    return path, placement


@dataclass
class Improved:
    """A session that negates twice what it is given, node by node; what it may find, and its log."""

    session: Session
    told: Told
    log: Path
    better: tuple[Path, Placement]
    """The same in one group."""
    wrong: tuple[Path, Placement]
    """Another function."""

    def ask(self, x: Array = X) -> Array:
        [y] = self.session.run(None, {"x": x})
        return y


def open_improved(folder: Path, idle_s: float = 0.01) -> Improved:
    """See `improved`; `background_child.improve` is to be what improves."""
    graph = graph_of([("Neg", ["x"], "a"), ("Neg", ["a"], "y")], ["y"], X.shape)
    other = graph_of([("Neg", ["x"], "a"), ("Exp", ["a"], "y")], ["y"], X.shape)
    told = Told(folder / "told")
    told.folder.mkdir()
    log = folder / "log.jsonl"
    first, _ = bundle_of(folder, "first", graph, (0,), (1,))
    options = Background(output=told.folder / "kept.collage", log=log, idle_s=idle_s)
    better, wrong = bundle_of(folder, "better", graph, (0, 1)), bundle_of(folder, "wrong", other, (0, 1))
    return Improved(Session(first, optimize=options), told, log, better, wrong)


@pytest.fixture
def improved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Improved]:
    """A session, and who computes in the background is there."""
    monkeypatch.setattr("collage_core.background.improving._improve", background_child.improve)
    # However busy the machine is: it is waited for until all have stopped.
    monkeypatch.setattr("collage_core.background.tree._STOP_LIMIT_S", 30.0)
    opened = open_improved(tmp_path)
    try:
        yield opened
    finally:
        opened.session.close()
