"""The command in this process: quick, for what loads no vendor's library."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from collage_command import BRIEFLY
from weighted_bundle import bundle_of, weighted_graph

from collage_core import save
from collage_core.cli.main import main

if TYPE_CHECKING:
    from collage_command import Collage, Optimised

Place = Callable[..., Any]
Mistake = Callable[..., str]
Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLLAGE_LOCK", str(tmp_path / "lock"))
    monkeypatch.setenv("COLLAGE_SETTINGS", "off")  # not the developer's own
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def place(optimised: Optimised, capsys: pytest.CaptureFixture[str]) -> Place:
    """`place(*options)`: the report of `collage optimize` on the shared model and its costs, as JSON."""

    def run(*options: str) -> Any:
        costs = str(optimised.collage.home / "costs.sqlite")
        arguments = ["optimize", str(optimised.model), *BRIEFLY, "--costs", costs, "--json"]
        assert main([*arguments, *options]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str]) -> Mistake:
    """`mistake(*arguments)`: what the command says about them, in one line, with exit code 1."""

    def run(*arguments: str | Path) -> str:
        assert main([str(a) for a in arguments]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        lines = captured.err.splitlines()
        (line,) = [line for line in lines if line.startswith("collage: ")]
        assert line == lines[-1], "one line, and the last"
        return line

    return run


@pytest.fixture
def refused(collage: Collage) -> Refused:
    """`refused(*arguments)`: as `mistake`, by the installed command; nothing may be left in its folders."""

    def run(*arguments: str | Path) -> str:
        process = collage.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (1, ""), err
        assert "Traceback" not in err
        lines = err.splitlines()
        assert [line for line in lines if line.startswith("collage: ")] == lines[-1:], err
        assert not list(collage.folder.rglob("*.partial"))
        assert not list(collage.temporary.iterdir())
        return lines[-1]

    return run


@pytest.fixture
def bundle(collage: Collage) -> Path:
    """On the reference; an input for it lies beside it as x.npy."""
    path = collage.folder / "m.collage"
    save(bundle_of(weighted_graph()), path)
    np.save(collage.folder / "x.npy", np.ones((2, 3), np.float32))
    return path
