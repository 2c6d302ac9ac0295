"""The bundle of a session holds what the session answers with, and nothing that it has refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from background_child import Told
from processes import wait_until

from collage_core import Background, Session, read, save
from collage_core.background.gate import Closing
from collage_core.background.keeping import Kept
from collage_core.errors import CollageError

if TYPE_CHECKING:
    from tests.background.conftest import Improved

_OLD = b"what an earlier session has kept"


def _found(folder: Path, content: bytes) -> str:
    path = folder / "found"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("there", [None, b""])
def test_what_answers_is_kept_where_there_is_nothing(there: bytes | None, tmp_path: Path) -> None:
    output = tmp_path / "kept.collage"
    if there is not None:
        output.write_bytes(there)
    kept = Kept(output)
    kept.keep(nullcontext)
    assert output.exists() == (there is not None)
    kept.answers(_found(tmp_path, b"new"))
    kept.keep(nullcontext)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept.collage", b"new")]


def test_what_answers_first_replaces_nothing_but_what_is_better_does(tmp_path: Path) -> None:
    output = tmp_path / "kept.collage"
    output.write_bytes(_OLD)
    kept = Kept(output)
    kept.answers(_found(tmp_path, b"first"))
    kept.keep(nullcontext)
    assert output.read_bytes() == _OLD
    kept.answers(_found(tmp_path, b"better"))
    kept.allow()
    kept.keep(nullcontext)
    assert output.read_bytes() == b"better"


def test_what_is_there_already_is_neither_written_nor_removed(tmp_path: Path) -> None:
    output = tmp_path / "kept.collage"
    output.write_bytes(_OLD)
    kept = Kept(output)
    kept.allow()
    kept.answers(str(output))
    kept.keep(nullcontext)
    kept.forget(str(output))
    assert output.read_bytes() == _OLD


def test_who_is_closed_while_it_is_copied_copies_it_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its own file has gone with its process."""
    monkeypatch.setattr("collage_core.background.keeping._CHUNK_BYTES", 2)
    slices: list[str] = []

    @contextmanager
    def working() -> Iterator[None]:
        slices.append("begun")
        if len(slices) == 2:
            raise Closing
        yield

    kept = Kept(tmp_path / "kept.collage")
    kept.answers(_found(tmp_path, b"in slices"))
    with pytest.raises(Closing):
        kept.keep(working)
    assert list(tmp_path.iterdir()) == []
    kept.keep(nullcontext)
    assert (tmp_path / "kept.collage").read_bytes() == b"in slices"


def test_what_cannot_be_written_is_tried_once(tmp_path: Path) -> None:
    output = tmp_path / "no" / "kept.collage"
    kept = Kept(output)
    kept.answers(_found(tmp_path, b"new"))
    with pytest.raises(CollageError, match=r"cannot write .*kept\.collage: No such file or directory"):
        kept.keep(nullcontext)
    output.parent.mkdir()
    kept.keep(nullcontext)
    assert not output.exists()


def _swaps(improved: Improved) -> int:
    state = improved.session.optimization
    assert state is not None
    return state.swaps


def test_what_was_refused_is_not_kept(improved: Improved) -> None:
    kept = improved.told.folder / "kept.collage"
    improved.told.find(*improved.wrong)
    assert wait_until(lambda: (s := improved.session.optimization) is not None and s.reason is not None)
    improved.told.find(*improved.better)
    assert wait_until(kept.exists)
    assert read(kept).placement.digest == improved.better[1].digest
    assert wait_until(lambda: _swaps(improved) == 1)


def test_what_takes_over_as_the_session_is_closed_is_kept(improved: Improved) -> None:
    improved.told.find(*improved.better)
    assert wait_until(lambda: _swaps(improved) == 1)
    improved.session.close()
    assert read(improved.told.folder / "kept.collage").placement.digest == improved.better[1].digest


def test_where_it_cannot_be_kept_requests_go_on(improved: Improved) -> None:
    kept = improved.told.folder / "kept.collage"
    kept.mkdir()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        improved.told.find(*improved.better)
        assert wait_until(lambda: bool(said))
    assert "what was found in the background is not kept: cannot write " in str(said[0].message)
    np.testing.assert_array_equal(improved.ask(), np.arange(6, dtype=np.float32).reshape(2, 3))
    assert "kept.collage: Is a directory" in improved.log.read_text()
    assert _swaps(improved) == 1
    improved.told.end()
    assert wait_until(lambda: (s := improved.session.optimization) is not None and s.state == "finished")


def test_a_models_first_answer_replaces_what_is_kept_only_if_nothing_is_better(
    improved: Improved, tmp_path: Path
) -> None:
    model, told = tmp_path / "m.onnx", Told(tmp_path / "of_model")
    model.write_bytes(b"whatever `improve` makes of it")
    told.folder.mkdir()
    told.find(*improved.better)
    kept = told.folder / "kept.collage"
    old = read(improved.wrong[0])
    save(old, kept)
    with Session(model, optimize=Background(output=kept, idle_s=0.01)) as session:
        session.run(None, {"x": np.zeros((2, 3), np.float32)})
        assert read(kept).placement.digest == old.placement.digest
        told.end()
        assert wait_until(lambda: (s := session.optimization) is not None and s.state == "finished")
        assert read(kept).placement.digest == improved.better[1].digest
