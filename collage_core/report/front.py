"""Time against error, of what was tried to hold a limit: a table, and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from collage_run.printable import printable_line

from collage_core.errors import CollageError
from collage_core.report.conclusion import ms_text
from collage_core.report.tables import Table

__all__ = ["front_svg", "front_table"]

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 40, 50


def front_table(limit: Mapping[str, Any]) -> Table | None:
    """The placements on the front, the fastest first; None where nothing was tried."""
    rows = [
        (ms_text(t["predicted_ms"]), f"{t['error']:.1e}", _held_out(t))
        for t in limit.get("tried", ())
        if t["is_on_front"]
    ]
    if not rows:
        return None
    header = ("predicted ms", "error, weighed", "error, held out")
    return Table(header, rows, right=(0, 1, 2), title="time against error, of what was tried")


def _held_out(tried: Mapping[str, Any]) -> str:
    return "" if tried["held_out_error"] is None else f"{tried['held_out_error']:.1e}"


def front_svg(limit: Mapping[str, Any], title: str) -> str:
    """What was tried, as SVG: filled where it was run on held-out inputs, at the error that it had there;
    hollow at the error that was weighed. The line is the limit. Of a metric only what was run is known.
    """
    metric: str | None = limit.get("metric")
    every: Sequence[Mapping[str, Any]] = limit["tried"]
    tried = [t for t in every if metric is None or t["held_out_error"] is not None]
    points = [(t["predicted_ms"], _error(t), t["held_out_error"] is not None) for t in tried]
    if not points:
        raise CollageError(f"nothing was run on held-out inputs, and {metric} is known of nothing")
    times = [ms for ms, _, _ in points]
    # 0 has no place on a logarithmic axis: it is drawn a decade below all others.
    least = min([e for _, e, _ in points if e > 0], default=1.0) / 10
    errors = [math.log10(max(e, least)) for _, e, _ in points]
    allowed = math.log10(limit["most"])
    margin = (max(times) - min(times)) * 0.05 or max(times) * 0.05
    x_at = _Axis(min(times) - margin, max(times) + margin, _LEFT, _WIDTH - _RIGHT)
    low, high = math.floor(min([*errors, allowed])), math.ceil(max([*errors, allowed]))
    high = max(high, low + 1)
    y_at = _Axis(low, high, _HEIGHT - _BOTTOM, _TOP)
    parts = [_text(_WIDTH / 2, 20, title, "middle")]
    for power in range(low, high + 1):
        y = y_at(power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"1e{power}", "end"))
    for ms in (x_at.low, (x_at.low + x_at.high) / 2, x_at.high):
        parts.append(_text(x_at(ms), _HEIGHT - _BOTTOM + 18, f"{ms:.3g}", "middle"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 12, "predicted ms", "middle"))
    parts.append(_text(_LEFT, _TOP - 8, metric or "error", "end"))
    y = y_at(allowed)
    parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#c33" stroke-dasharray="5 3"/>')
    for (ms, _, is_held_out), error in zip(points, errors, strict=True):
        fill = "#236" if is_held_out else "none"
        x, y = x_at(ms), y_at(error)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="#236"/>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12">\n{body}\n</svg>\n'
    )


class _Axis(NamedTuple):
    """From numbers, from low to high, to places from first to last."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, number: float) -> float:
        return self.first + (number - self.low) / (self.high - self.low) * (self.last - self.first)


def _error(tried: Mapping[str, Any]) -> float:
    held_out: float | None = tried["held_out_error"]
    weighed: float = tried["error"]
    return weighed if held_out is None else held_out


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(printable_line(text))}</text>'
