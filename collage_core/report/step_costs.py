"""What a group or a conversion takes, as reports tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from collage_core.search.transitions import Transitions

__all__ = ["cost_json", "ms_header", "predicted_ms", "took_ms"]


def cost_json(
    backend: str, cost_ms: float | None, transitions: Transitions | None
) -> dict[str, float | None]:
    """cost_ms: what the search reckons with. Of what was learnt in place it is what the backend's constant
    leaves, which may be nothing. predicted_ms: with that constant; left out where none is known.
    """
    if transitions is None:
        return {"cost_ms": cost_ms}
    predicted = None if cost_ms is None else transitions.in_executable_ms(backend, cost_ms)
    return {"cost_ms": cost_ms, "predicted_ms": predicted}


def predicted_ms(step: Mapping[str, Any]) -> float | None:
    """Of a group, a conversion or a rival, in a report. Where it is not told, its cost stands for it."""
    told_ms: float | None = step.get("predicted_ms", step["cost_ms"])
    return told_ms


def ms_header(steps: Iterable[Mapping[str, Any]]) -> str:
    """What `predicted_ms` of these is to be called."""
    return "predicted" if any("predicted_ms" in step for step in steps) else "cost"


def took_ms(step: Mapping[str, Any]) -> float | None:
    """In place where it has run there, else what is predicted."""
    in_place_ms: float | None = step.get("in_place_ms")
    return predicted_ms(step) if in_place_ms is None else in_place_ms
