"""Time against error, of what was tried to hold a limit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from collage_core.errors import CollageError
from collage_core.pipeline.error_limit import Spent, Tried
from collage_core.report.front import front_svg, front_table
from collage_core.report.rounding import limit_json

_TRIED = (
    Tried(1.0, 0.05),
    Tried(1.5, 0.008, 0.009),
    Tried(1.6, 0.02),
    Tried(1.6, 0.008),
    Tried(2.0, 0.0),
)


def _limit(tried: tuple[Tried, ...] = _TRIED, metric: str | None = None) -> dict[str, Any]:
    limit = limit_json(replace(Spent(0.01, 0.009, 4, {}, True), tried=tried, metric=metric))
    assert limit is not None
    told: dict[str, Any] = json.loads(json.dumps(limit))
    return told


def test_on_the_front_is_what_nothing_else_is_as_fast_and_as_right_as() -> None:
    assert [t["is_on_front"] for t in _limit()["tried"]] == [True, True, False, False, True]
    assert [line.split() for line in str(front_table(_limit())).splitlines()[2:]] == [
        ["1.0000", "5.0e-02"],
        ["1.5000", "8.0e-03", "9.0e-03"],
        ["2.0000", "0.0e+00"],
    ]
    assert front_table(_limit(())) is None
    assert front_table({"most": 0.01}) is None, "a report of before"


def test_what_was_run_counts_before_what_was_weighed() -> None:
    tried = (Tried(1.0, 0.004, 0.5), Tried(1.1, 0.006, 0.001))
    assert [t["is_on_front"] for t in _limit(tried)["tried"]] == [True, True]
    tried = (Tried(1.0, 0.006, 0.001), Tried(1.1, 0.004, 0.5))
    assert [t["is_on_front"] for t in _limit(tried)["tried"]] == [True, False]
    with pytest.raises(CollageError, match="top1 is known of nothing"):
        front_svg(_limit((Tried(1.0, 0.5),), "top1"), "m")


@pytest.mark.parametrize("metric", [None, "top1"])
@pytest.mark.parametrize("tried", [_TRIED, _TRIED[1:2], _TRIED[1:2] * 2], ids=len)
def test_the_picture_has_all_of_them_within_its_frame(tried: tuple[Tried, ...], metric: str | None) -> None:
    svg = ElementTree.fromstring(front_svg(_limit(tried, metric), "a <model> & more"))
    name = "{http://www.w3.org/2000/svg}"
    circles = svg.findall(f"{name}circle")
    shown = [t for t in tried if metric is None or t.held_out_error is not None]
    assert len(circles) == len(shown), "of a metric only what was run is known"
    assert sum(c.get("fill") == "none" for c in circles) == sum(t.held_out_error is None for t in shown)
    for c in circles:
        assert 70 <= float(c.get("cx", 0)) <= 620
        assert 40 <= float(c.get("cy", 0)) <= 350
    limits = [p for p in svg.findall(f"{name}path") if p.get("stroke-dasharray")]
    assert len(limits) == 1
    assert (metric or "error") in "".join(svg.itertext())
    if len(shown) > 2:
        at = float(re.findall(r"M70 ([\d.]+)H", limits[0].get("d", ""))[0])
        above = [float(c.get("cy", 0)) < at for c in circles]
        assert above == [(t.held_out_error or t.error) > 0.01 for t in tried]
    assert "a <model> & more" in "".join(svg.itertext())
