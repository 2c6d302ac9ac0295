"""The tiers of tests take what they may take: tests/seconds.json, processor seconds of each folder and what
passed by the clock, written by `--seconds=update`.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_TABLE: dict[str, dict[str, float]] = json.loads((_ROOT / "tests" / "seconds.json").read_text())
_ELAPSED_S = _TABLE["elapsed"]
_SECONDS = {tier: seconds for tier, seconds in _TABLE.items() if seconds is not _ELAPSED_S}
_PROCESSES = 2
_LIMITS_S = {"tests": 10 * 60, "ci": 25 * 60}
"""Of `nox -s tests` and `nox -s ci` in two processes; docs/adr/0023."""


def _folders() -> set[str]:
    """Where there are tests."""
    places = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
        "testpaths"
    ]
    found = {path.parent for place in places for path in (_ROOT / place).rglob("test_*.py")}
    return {folder.relative_to(_ROOT).as_posix() for folder in found}


def test_every_folder_of_tests_is_in_the_table() -> None:
    listed = {folder for seconds in _SECONDS.values() for folder in seconds}
    assert listed == _folders(), "to write it anew: nox -s tests -- --seconds=update"
    assert _SECONDS["tests"].keys() == _folders(), "some of every folder runs every time"


@pytest.mark.parametrize("tier", _LIMITS_S)
def test_a_tier_takes_no_longer_than_it_may(tier: str) -> None:
    taken_s = max(_ELAPSED_S.get(tier, 0), sum(_SECONDS[tier].values()) / _PROCESSES)
    assert taken_s <= _LIMITS_S[tier], (
        f"{tier}: {taken_s:.0f} s; make tests faster, or move them to ci or slow"
    )
