"""What ends the optimising is told, and ends all that took part in it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from processes import gone, wait_until

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
