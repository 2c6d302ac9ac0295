"""What ends the optimising is told, and ends all that took part in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from background_child import Told
from processes import gone, wait_until

from collage_core import Background, Session
from collage_core.background import child
from collage_core.errors import CollageError
from collage_core.worker import WorkerCrash

if TYPE_CHECKING:
    from tests.background.conftest import Improved

_X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _has_failed(improved: Improved) -> bool:
    state = improved.session.optimization
    names = ("collage-optimise", "collage-background")
    return (
        state is not None
        and state.state == "failed"
        and not any(thread.name in names for thread in threading.enumerate())
    )


@pytest.mark.filterwarnings("ignore:optimising in the background has ended")
@pytest.mark.parametrize("is_over_before", [True, False])
def test_no_thread_to_open_in_is_the_end_of_it(
    improved: Improved, is_over_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all would stand still, with the measuring lock, and nobody would be told."""
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        if getattr(thread, "_target", None) == session._swap_until_closed:
            raise RuntimeError("can't start new thread")
        start(thread)

    session: Any = improved.session._profiles
    assert wait_until(lambda: bool(improved.told.pids))
    monkeypatch.setattr(threading.Thread, "start", starts)

    def end() -> None:
        improved.told.find(*improved.better)
        if is_over_before:
            improved.told.end()
        assert wait_until(lambda: _has_failed(improved))

    with pytest.warns(UserWarning, match="background has ended: RuntimeError: can't start new thread"):
        end()
    state = improved.session.optimization
    assert state is not None
    assert state.reason == "RuntimeError: can't start new thread"
    assert wait_until(lambda: all(map(gone, improved.told.pids)))
    np.testing.assert_array_equal(improved.ask(), _X)


def test_why_nothing_answers_is_told(improved: Improved) -> None:
    improved.told.refuse("it cannot be opened")
    improved.told.end()
    assert wait_until(lambda: (s := improved.session.optimization) is not None and s.state == "finished")
    state = improved.session.optimization
    assert state is not None
    assert state.reason == "it cannot be opened"


def test_why_a_model_has_no_first_answer_is_told(improved: Improved, tmp_path: Path) -> None:
    model, told = tmp_path / "m.onnx", Told(tmp_path / "of_model")
    model.write_bytes(b"whatever `improve` makes of it")
    told.folder.mkdir()
    told.refuse("it cannot be opened")
    told.end()
    with pytest.raises(CollageError, match=r"^it cannot be opened$"):
        Session(model, optimize=Background(output=told.folder / "kept.collage"))


def test_what_cannot_be_opened_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who has found it."""

    def optimize(model: object, *, on_best: Callable[[Any], None], **_: object) -> Any:
        found = SimpleNamespace(
            placement=SimpleNamespace(digest="d"), comparison=None, chosen="a library", stage="first"
        )
        on_best(found)
        return found

    def breaks(*_: object) -> float:
        raise WorkerCrash("exit code 3")

    model, events = tmp_path / "m.onnx", tmp_path / "events"
    model.write_bytes(b"a model")
    monkeypatch.setattr(child, "optimize", optimize)
    monkeypatch.setattr(child, "keep", lambda *_: None)
    monkeypatch.setattr(child, "_rehearsed", breaks)
    child.improve(model, Background(), None, str(events))
    [told] = map(json.loads, events.read_text().splitlines())
    assert told["event"] == "refused"
    assert told["label"] == "a library"
    assert told["reason"] == "what was found cannot be opened: the worker process died: exit code 3"
