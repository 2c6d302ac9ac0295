"""What takes over answers all that what it replaces does, be it asked for or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import background_child
import numpy as np
import pytest
from background_child import Told
from numpy_backend import graph_of
from processes import wait_until

from collage_core import Background, Session
from tests.background.conftest import X, bundle_of


def _asks_for_one(session: Session) -> None:
    session.run(["a"], {"x": X})


def _asks_for_nothing(session: Session) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    session.run_with_iobinding(binding)


@pytest.mark.parametrize("asks", [_asks_for_one, _asks_for_nothing])
def test_what_the_first_request_did_not_want_is_compared_too(
    asks: Callable[[Session], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage_core.background.improving._improve", background_child.improve)
    told = Told(tmp_path / "told")
    told.folder.mkdir()
    right, wrong = (
        graph_of([("Neg", ["x"], "a"), (last, ["a"], "y")], ["a", "y"], X.shape) for last in ("Neg", "Exp")
    )
    first, _ = bundle_of(tmp_path, "first", right, (0,), (1,))
    options = Background(output=told.folder / "kept.collage", idle_s=0.01)
    with Session(first, optimize=options) as session:
        asks(session)
        told.find(*bundle_of(tmp_path, "wrong", wrong, (0, 1)))
        assert wait_until(lambda: (s := session.optimization) is not None and bool(s.reason or s.swaps))
        state = session.optimization
        assert state is not None
        assert "output 'y' has error" in str(state.reason)
        np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], X)
        told.find(*bundle_of(tmp_path, "better", right, (0, 1)))
        assert wait_until(lambda: (s := session.optimization) is not None and s.swaps == 1)
        np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], X)
