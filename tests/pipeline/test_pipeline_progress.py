"""What the pipeline tells of its phases, added up."""

from __future__ import annotations

import pytest

from collage_core.measuring.progress import Progress, Timed


class Heard:
    """All that was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def phase(self, name: str, total: int | None = None) -> None:
        self.told.append(("phase", name, total))

    def step(self, detail: str = "") -> None:
        self.told.append(("step", detail))

    def note(self, text: str) -> None:
        self.told.append(("note", text))

    def best(self, label: str, latency_ms: float, single: str | None, single_ms: float | None) -> None:
        self.told.append(("best", label, latency_ms, single, single_ms))

    def limit(self, seconds: float | None) -> None:
        self.told.append(("limit", seconds))


def test_all_is_told_on() -> None:
    heard = Heard()
    timed: Progress = Timed(heard)
    timed.limit(60.0)
    timed.phase("measuring", 3)
    timed.step("a")
    timed.note("busy")
    timed.best("mix", 1.0, "a", 2.0)
    timed.phase("searching")
    assert heard.told == [
        ("limit", 60.0),
        ("phase", "measuring", 3),
        ("step", "a"),
        ("note", "busy"),
        ("best", "mix", 1.0, "a", 2.0),
        ("phase", "searching", None),
    ]


def test_seconds_of_phases_add_up() -> None:
    now_s = 100.0
    timed = Timed(Heard(), lambda: now_s)
    assert timed.seconds == {}
    now_s = 105.0  # before the first phase: nobody's
    timed.phase("measuring")
    now_s = 107.0
    timed.phase("searching")
    now_s = 107.5
    timed.phase("measuring")
    now_s = 110.5
    assert timed.seconds == pytest.approx({"measuring": 5.0, "searching": 0.5})
    assert list(timed.seconds) == ["measuring", "searching"]
    now_s = 111.0
    timed.step()
    assert timed.seconds["measuring"] == pytest.approx(5.5), "the phase under way counts up to now"
    timed.phase("proving")
    assert timed.seconds == pytest.approx({"measuring": 5.5, "searching": 0.5, "proving": 0.0})
