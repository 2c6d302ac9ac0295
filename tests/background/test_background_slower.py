"""What takes longer here than what answers now is no better, whatever it took elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from collage_core.background.agreeing import Answering, slower
from collage_core.formats import Array
from collage_core.ir import TensorType


class _Sleeping:
    """Answers after so many seconds."""

    def __init__(self, takes_s: float, *others_s: float) -> None:
        """others_s: of further runs, in turn."""
        type = {"y": TensorType("float32", (2,))}
        self.executable: Any = SimpleNamespace(outputs=type, buffers=type)
        self.runs = 0
        self._takes_s = (takes_s, *others_s)

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        self.runs += 1
        time.sleep(self._takes_s[self.runs % len(self._takes_s)])
        return dict(outputs)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("takes_s", "is_slower"), [(0.004, True), (0.001, False), (0.0002, False)])
def test_both_run_in_turn_and_the_slower_one_is_told(takes_s: float, is_slower: bool) -> None:
    before, after = _Sleeping(0.001), _Sleeping(takes_s)
    slices = []
    x = {"x": np.zeros(2, np.float32)}
    found = slower(cast(Answering, after), cast(Answering, before), x, lambda: slices.append(after.runs))
    assert (found is not None) == is_slower
    if found is not None:
        assert "in this process it takes" in found
    assert before.runs == after.runs == len(slices) / 2


def test_what_others_do_meanwhile_is_not_held_against_it() -> None:
    before, after = _Sleeping(0.001), _Sleeping(0.001, 0.01)
    assert slower(cast(Answering, after), cast(Answering, before), {}, lambda: None) is None


def test_a_little_of_what_takes_no_time_is_nothing() -> None:
    before, after = _Sleeping(0.0), _Sleeping(1e-6)
    assert slower(cast(Answering, after), cast(Answering, before), {}, lambda: None) is None
