"""What a session that optimises in the background refuses, before anything is done."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from collage_core import Background, Session
from collage_core.errors import CollageError

if TYPE_CHECKING:
    from tests.background.conftest import Improved


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("foreground", "optimize is 'foreground'; known: 'background', or a Background"),
        ("background", r"no\.onnx: no such file"),
    ],
)
def test_mistakes(tmp_path: Path, asked: str, said: str) -> None:
    with pytest.raises(CollageError, match=said):
        Session(tmp_path / "no.onnx", optimize=asked)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "m.onnx"}, "cannot write m.onnx: it is the model"),
        ({"log": "m.onnx"}, "cannot write m.onnx: it is the model"),
        ({"output": "m.data"}, "cannot write m.data: there is a file that is no bundle"),
        ({"log": "m.data"}, "cannot write m.data: there is a file that is no log of events"),
        ({"output": "new", "log": "new"}, "cannot write new: it is the bundle for what is found"),
        ({"output": "new", "costs": "new"}, "cannot write new: it is the cost database"),
        ({"log": "new", "costs": "new"}, "cannot write new: it is the cost database"),
        ({"log": "no/new"}, "cannot write no/new: there is no such folder"),
        ({"costs": "no/new"}, "costs no/new: there is no such folder"),
    ],
)
def test_what_is_there_stays(
    options: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.onnx", "m.data"):
        Path(name).write_text(name)
    with pytest.raises(CollageError, match=said):
        Session(tmp_path / "m.onnx", optimize=Background(**options))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        n: n for n in ("m.onnx", "m.data")
    }


def test_a_log_is_not_the_bundle_and_shapes_are_a_models(improved: Improved, tmp_path: Path) -> None:
    bundle = improved.better[0]
    before = bundle.read_bytes()
    with pytest.raises(CollageError, match="it is the bundle"):
        Session(bundle, optimize=Background(log=bundle))
    with pytest.raises(CollageError, match="has its shapes"):
        Session(bundle, optimize=Background(shapes={"x": (2, 3)}))
    assert bundle.read_bytes() == before


def test_a_log_is_written_where_it_lies(improved: Improved, tmp_path: Path) -> None:
    """And so may be a device, or a pipe, in a folder that nobody may write to."""
    bundle = improved.better[0]
    Background(log="/dev/null").require_places(bundle, is_bundle=True)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    Background(log=pipe).require_places(bundle, is_bundle=True)
    with pytest.raises(CollageError, match="it is no file"):
        Background(output=pipe).require_places(bundle, is_bundle=True)


@pytest.mark.parametrize("value", [-1, "1s", None])
@pytest.mark.parametrize("name", ["idle_s", "first_limit_s"])
def test_times_are_no_less_than_nothing(name: str, value: Any) -> None:
    with pytest.raises(CollageError, match=f"{name} is a number of seconds from 0 on, not {value!r}"):
        replace(Background(), **{name: value})


def test_options_that_are_none() -> None:
    with pytest.raises(CollageError, match="budget_s is a number of seconds from 0 on, not '10s'"):
        Background(budget_s="10s")  # type: ignore[arg-type]
    with pytest.raises(CollageError, match="shapes has the sizes of inputs by name; it is 'x'"):
        Background(shapes="x")  # type: ignore[arg-type]
    with pytest.raises(CollageError, match="effort is a name, not None"):
        Background(effort=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pipe", "nothing", "x\0y"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CollageError, match=r"no regular file|no such file"):
        Session(tmp_path / name, optimize="background")
