"""Logs of sessions that optimise in the background, read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from collage_benchmarks.background_events import (
    events_of,
    overlapping,
    requests_of,
    swaps_of,
    windows_of,
)


def _request(begun_s: float, ended_s: float, number: int = 1) -> dict[str, Any]:
    facts = {"number": number, "arrived_s": begun_s - 0.5, "begun_s": begun_s, "error": None}
    return {"t": ended_s, "event": "request", **facts}


def _at(t: float, event: str) -> dict[str, Any]:
    return {"t": t, "event": event}


@pytest.mark.parametrize(
    ("events", "overlaps"),
    [
        ([_at(1, "stopped"), _request(2, 3)], False),
        ([_request(2, 3)], True),
        ([_at(2.5, "stopped"), _request(2, 3)], True),
        ([_at(1, "stopped"), _at(2.5, "continue"), _request(2, 3), _at(4, "stopped")], True),
        ([_at(1, "stopped"), _request(2, 3), _at(3, "continue"), _at(4, "stopped")], False),
        ([_at(1, "late"), _request(2, 3)], True),
        ([_at(1, "ended"), _request(2, 3)], False),
        ([_at(1, "stopped"), {**_at(2.5, "slice"), "begun_s": 1.5}, _request(2, 3)], True),
        ([_at(1, "stopped"), {**_at(2, "slice"), "begun_s": 1.5}, _request(2, 3)], False),
    ],
)
def test_who_overlaps(events: list[dict[str, Any]], overlaps: bool) -> None:
    assert [r.number for r in overlapping(events)] == ([1] if overlaps else [])


def test_requests_over_time(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    swap = {"t": 4.0, "event": "swap", "label": "mix"}
    events = [{**swap, "t": 0.1}, *(_request(i, i + 0.5, i) for i in range(1, 6)), swap]
    log.write_text("".join(json.dumps(e) + "\n" for e in events))
    assert events_of(log) == events
    requests = requests_of(events)
    assert [r.ms for r in requests] == [1000.0] * 5
    windows = windows_of(requests, 2)
    assert [(w.until_s, w.p50_ms, w.p99_ms, w.requests) for w in windows] == [
        (2.0, 1000.0, 1000.0, 2),
        (4.0, 1000.0, 1000.0, 2),
        (5.0, 1000.0, 1000.0, 1),
    ]
    assert [w.requests for w in windows_of(requests, 4)] == [5]
    assert swaps_of(events) == [(3.5, "mix")], "the one before the first request is none over time"
