"""What a person has asked for, as a report has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage_core.candidates import Constraints, FixedGroup
from collage_core.formats import Format

__all__ = ["constraints_from", "constraints_json", "prices_text"]


def constraints_json(asked: Constraints) -> dict[str, Any]:
    """All of it; formats as (dtype, layout, device)."""
    return {
        "pins": dict(asked.pins),
        "excluded": [list(e) for e in asked.excluded],
        "together": [list(t) for t in asked.together],
        "groups": [
            {
                "nodes": list(g.nodes),
                "backend": g.backend,
                "inputs": _formats_json(g.inputs),
                "outputs": _formats_json(g.outputs),
                "options": None if g.options is None else dict(g.options),
            }
            for g in asked.groups
        ],
    }


def constraints_from(data: Mapping[str, Any]) -> Constraints:
    """What `constraints_json` wrote. LookupError, TypeError or ValueError for anything else."""
    return Constraints(
        {_text(nodes): _text(name) for nodes, name in data.get("pins", {}).items()},
        [(_text(name), None if nodes is None else _text(nodes)) for name, nodes in data.get("excluded", ())],
        [tuple(map(_text, nodes)) for nodes in data.get("together", ())],
        [
            FixedGroup(
                tuple(map(_text, g["nodes"])),
                _text(g["backend"]),
                _formats_from(g["inputs"]),
                _formats_from(g["outputs"]),
                None if g["options"] is None else tuple(sorted(_texts(g["options"]).items())),
            )
            for g in data.get("groups", ())
        ],
    )


def prices_text(prices: Mapping[str, Mapping[str, Any]]) -> str:
    """What it costs to keep to what was asked for; "" where nothing was."""
    told = [f"{what}: {_price_text(price['ms'], price['is_least'])}" for what, price in prices.items()]
    return f"what was asked for costs, by what is known: {'; '.join(told)}" if told else ""


def _price_text(ms: float | None, is_least: bool) -> str:
    if ms is None:
        return "not known"
    return f"{'at least ' if is_least else ''}{ms:.4f} ms" if ms else "nothing"


def _formats_json(formats: Sequence[Format] | None) -> list[list[Any]] | None:
    return None if formats is None else [[f.dtype, list(f.layout), f.device] for f in formats]


def _formats_from(data: Sequence[Sequence[Any]] | None) -> tuple[Format, ...] | None:
    if data is None:
        return None
    return tuple(Format(_text(dtype), tuple(map(int, order)), _text(device)) for dtype, order, device in data)


def _texts(data: Mapping[str, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in data.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
