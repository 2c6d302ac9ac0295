"""Two contenders on a simulated machine whose host moves its processors: both ratios are told, and right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collage_core.costs import Contender, Rounds, Turns, measure_rounds
from collage_core.costs.processors import Look, Usual
from collage_core.costs.ratio import ratio_as_it_came, ratio_of
from collage_core.costs.seats import Runnable
from collage_core.costs.sittings import SITTINGS
from collage_core.measuring.end_to_end import record_of_outcome

TOGETHER, APART = Look(120.0, 1.0), Look(310.0, 1.0)
_SHARE_APART = 0.3
_STAY_S = 0.5
_TAKES_MS = {"mix": (9.0, 24.0), "one": (10.0, 10.0)}
"""Together, and apart: as convolutions of two libraries do (docs/adr/0025)."""


class Host:
    """The time, and where the processors are: for some seconds here, for some there."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self._random = np.random.default_rng(seed)
        self._until_s: list[float] = [0.0]
        self._apart: list[bool] = [False]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def is_apart(self) -> bool:
        while self._until_s[-1] <= self.now_s:
            self._until_s.append(self._until_s[-1] + self._random.exponential(_STAY_S))
            self._apart.append(bool(self._random.random() < _SHARE_APART))
        return self._apart[int(np.searchsorted(self._until_s, self.now_s, side="right"))]

    def look(self) -> Look:
        return APART if self.is_apart() else TOGETHER

    def runs_ms(self, name: str, runs: int) -> list[float]:
        times_ms = []
        for _ in range(runs):
            times_ms.append(_TAKES_MS[name][self.is_apart()] * self._random.normal(1.0, 0.01))
            self.now_s += times_ms[-1] / 1e3
        return times_ms


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """In place of processes and of time."""
    host = Host(0)

    class SimulatedWorker:
        def __init__(self, environment: object, **_: object) -> None:
            self._name = ""

        def call(self, function: Callable[..., object], *args: Any, timeout_s: object = None) -> object:
            if function.__name__ == "_open":
                (self._name,) = args[1]
                host.sleep(0.3)
            if function.__name__ == "_run":
                return host.runs_ms(self._name, 3), []
            return {}

        def pause(self) -> None: ...

        def resume(self) -> None: ...

        def kill(self) -> None: ...

    class SimulatedPartner:
        def __init__(self, numbers: object) -> None: ...

        def look(self) -> Look:
            return host.look()

        def close(self) -> None: ...

    monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", "120")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("collage_core.costs.seats.Worker", SimulatedWorker)
    monkeypatch.setattr("collage_core.costs.processors._one_of_each_core", list)
    monkeypatch.setattr("collage_core.costs.processors._Partner", SimulatedPartner)
    monkeypatch.setattr("collage_core.costs.processors._usual", Usual(TOGETHER.exchange_ns, known=True))
    for module in ("rounds", "processors"):
        monkeypatch.setattr(f"collage_core.costs.{module}.clock.monotonic", lambda: host.now_s)
    monkeypatch.setattr("collage_core.costs.processors.time.sleep", host.sleep)
    return host


def _never(name: str) -> Runnable:
    raise AssertionError("the worker is simulated")


def _in_turn(host: Host, rounds: int) -> list[tuple[float, float]]:
    return [(sum(host.runs_ms("mix", 3)), sum(host.runs_ms("one", 3))) for _ in range(rounds)]


@pytest.mark.usefixtures("host")
def test_both_ratios_are_right() -> None:
    contenders = [Contender(name, {}, _never, (name,)) for name in _TAKES_MS]
    outcomes = measure_rounds(contenders, Rounds(48 * 20, 48), Turns(3))
    mix, one = (outcomes[name].sittings for name in _TAKES_MS)
    steady, came = ratio_of(mix, one), ratio_as_it_came(mix, one)
    assert steady is not None
    assert came is not None
    assert steady.sittings > 32
    assert steady.value == pytest.approx(0.9, abs=0.01)
    assert steady.half_interval < 0.01
    assert came.sittings == 16
    always = Host(1)
    mix_ms, one_ms = ([*ms] for ms in zip(*_in_turn(always, 10_000), strict=True))
    expected = sum(mix_ms) / sum(one_ms)
    assert expected > 1.1, "by what a caller sees the mix is slower"
    assert abs(came.value - expected) <= came.half_interval < 0.15

    every_turn = [t for s in (*mix, *one) for t in s.turns]
    assert any(t.taken_again for t in every_turn)
    assert all(t.before is not None and t.after is not None for t in every_turn)
    assert sum(t.waited_s for t in every_turn) > 10
    assert all(not t.taken_again and t.waited_s == 0 for s in mix if s.as_it_comes for t in s.turns)
    assert all(t.moved for t in every_turn if t.taken_again)


@pytest.mark.usefixtures("host")
def test_a_quarter_of_the_sittings_runs_as_it_comes_and_all_turns_are_kept() -> None:
    contenders = [Contender(name, {}, _never, (name,)) for name in _TAKES_MS]
    for sittings in range(2, 17):
        outcome = measure_rounds(contenders, Rounds(2 * sittings, sittings), Turns(3))["mix"]
        came = [s.as_it_comes for s in outcome.sittings]
        assert len(came) == sittings
        assert sum(came) >= sittings / 4
    details: Any = record_of_outcome(outcome, {}).details
    stored = [t for s in details[SITTINGS] for t in s["turns"]]
    assert len(stored) == sum(len(s.turns) for s in outcome.sittings)
    assert {"ms", "before", "after", "waited_s", "moved", "taken_again"} == stored[0].keys()
