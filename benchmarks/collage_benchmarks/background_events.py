"""The log of events of a session that optimises in the background, read: who ran when."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Request", "Window", "events_of", "overlapping", "requests_of", "swaps_of", "windows_of"]


@dataclass(frozen=True, slots=True)
class Request:
    """When it came, began to run and was answered, by the monotonic clock; what it raised, or None."""

    number: int
    arrived_s: float
    begun_s: float
    ended_s: float
    error: str | None

    @property
    def ms(self) -> float:
        """What the caller has waited."""
        return (self.ended_s - self.arrived_s) * 1e3


@dataclass(frozen=True, slots=True)
class Window:
    """Requests that followed each other: when the last was answered, in seconds since the first came; the
    median of what they waited, and what 99 of 100 waited at most.
    """

    until_s: float
    p50_ms: float
    p99_ms: float
    requests: int


def events_of(log: Path) -> list[dict[str, Any]]:
    """In the order of the file."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def requests_of(events: Sequence[dict[str, Any]]) -> list[Request]:
    """In the order in which they were answered."""
    return [
        Request(e["number"], e["arrived_s"], e["begun_s"], e["t"], e["error"])
        for e in events
        if e["event"] == "request"
    ]


def windows_of(requests: Sequence[Request], size: int) -> list[Window]:
    """So many requests each; the last may have fewer, but no less than half."""
    parts = [requests[first : first + size] for first in range(0, len(requests), size)]
    if len(parts) > 1 and len(parts[-1]) < size / 2:
        parts[-2:] = [[*parts[-2], *parts[-1]]]
    windows = []
    for part in parts:
        p50_ms, p99_ms = np.quantile([r.ms for r in part], (0.5, 0.99)).tolist()
        windows.append(Window(part[-1].ended_s - requests[0].arrived_s, p50_ms, p99_ms, len(part)))
    return windows


def swaps_of(events: Sequence[dict[str, Any]]) -> list[tuple[float, str]]:
    """When another placement took over, in seconds since the first request came, and which."""
    begun_s = requests_of(events)[0].arrived_s
    return [(e["t"] - begun_s, e["label"]) for e in events if e["event"] == "swap" and e["t"] > begun_s]


def overlapping(events: Sequence[dict[str, Any]]) -> list[Request]:
    """Requests that ran while the optimiser did, or while something was built."""
    at_work = list(_at_work(events))
    return [
        r
        for r in requests_of(events)
        if any(begun_s < r.ended_s and r.begun_s < ended_s for begun_s, ended_s in at_work)
    ]


def _at_work(events: Sequence[dict[str, Any]]) -> Iterator[tuple[float, float]]:
    """Stretches of seconds."""
    runs_since_s: float | None = 0.0
    for event in events:
        if event["event"] == "slice":
            yield event["begun_s"], event["t"]
        elif event["event"] == "continue":
            runs_since_s = event["t"]
        elif event["event"] in ("stopped", "ended") and runs_since_s is not None:
            yield runs_since_s, event["t"]
            runs_since_s = None
    if runs_since_s is not None:
        yield runs_since_s, math.inf
