"""The comparison of equal contenders: whom its tables call slow, and that it runs."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import script

from collage_core.costs.rounds import starting_order
from collage_core.costs.seats import Outcome
from collage_core.costs.sittings import Sitting, Turn

_SCRIPT = Path(__file__).parents[1] / "equal_contenders.py"


@pytest.fixture(scope="module")
def equal() -> Any:
    """The script, as a module."""
    return script("equal_contenders")


def test_who_starts_first_and_is_slow_is_seen_at_that_place(equal: Any) -> None:
    names, sittings = ["1", "2", "3"], 18
    times: dict[str, list[float]] = {name: [] for name in names}
    for sitting in range(sittings):
        for place, name in enumerate(starting_order(names, sitting, 0)):
            times[name].append(10.3 if place == 0 else 10.0)
    outcomes = {
        name: Outcome(None, sittings=tuple(Sitting((Turn(ms),)) for ms in of)) for name, of in times.items()
    }
    by_place = equal._by_place(equal._off(outcomes))
    slow = 100 * 2 / 3 * math.log(10.3 / 10.0)
    assert equal._row("first", by_place[0]) == f"| first | {slow:+.2f} +- 0.00 | 18 of 18 |"
    for others in by_place[1:]:
        assert equal._row("later", others) == f"| later | {-slow / 2:+.2f} +- 0.00 | 0 of 18 |"


@pytest.mark.ci
def test_a_comparison_runs_and_is_told_by_name_and_by_place() -> None:
    command = [
        sys.executable,
        str(_SCRIPT),
        "tiny_encoder",
        "onnxruntime",
        "--contenders",
        "2",
        "--sittings",
        "4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (.+) \| [+-][\d.]+ \+- [\d.]+ \| \d of \d \|$", done.stdout, re.M)
    assert rows == ["contender 1", "contender 2", "started as number 1", "started as number 2"]
