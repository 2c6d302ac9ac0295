"""A placement: which backend runs which nodes, in which formats. Readable, editable, reloadable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collage_core.backend import Variant
from collage_core.device import Target
from collage_core.errors import PlacementError
from collage_core.formats import Format

__all__ = ["VIEW", "Conversion", "Group", "Placement"]

VIEW = "view"
"""Name that stands where a backend's would, for groups that compute nothing: their output is their input's
buffer.
"""

_JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that one kernel of one backend runs.

    nodes: ids in the normalised graph, in its order. cost_ms and spread_ms: as measured; 0 for views, None
    where not measured (a placement made by hand).
    """

    backend: str
    nodes: tuple[int, ...]
    variant: Variant
    cost_ms: float | None = None
    spread_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Conversion:
    """One value brought from the format in which it is produced into one that some reader needs; done once
    for all readers.
    """

    value: str
    source: Format
    destination: Format
    backend: str
    cost_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Groups in an executable order, and the conversions between them, for one target.

    predicted_ms: the search's total; terms_ms: what it is made of, by name. optimal: whether no cheaper
    placement of the measured candidates exists; method: what found it.
    """

    groups: tuple[Group, ...]
    conversions: tuple[Conversion, ...]
    target: Target
    predicted_ms: float | None = None
    optimal: bool = False
    method: str = "manual"
    terms_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Equal for placements that run the same kernels in the same order, whatever they are predicted to
        cost.
        """
        plain = [[g.backend, g.nodes, str(g.variant)] for g in self.groups]
        conversions = [[c.value, str(c.source), str(c.destination), c.backend] for c in self.conversions]
        return hashlib.sha256(json.dumps([plain, conversions, str(self.target)]).encode()).hexdigest()[:16]

    def backends(self) -> tuple[str, ...]:
        """Names of the backends that run something, in order of appearance."""
        names = [g.backend for g in self.groups if g.backend != VIEW] + [c.backend for c in self.conversions]
        return tuple(dict.fromkeys(names))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _JSON_VERSION,
            "device": self.target.device,
            "threads": self.target.threads,
            "predicted_ms": self.predicted_ms,
            "terms_ms": dict(self.terms_ms),
            "optimal": self.optimal,
            "method": self.method,
            "groups": [
                {
                    "backend": g.backend,
                    "nodes": list(g.nodes),
                    "inputs": [_format_to_json(f) for f in g.variant.inputs],
                    "outputs": [_format_to_json(f) for f in g.variant.outputs],
                    "options": dict(g.variant.options),
                    "cost_ms": g.cost_ms,
                    "spread_ms": g.spread_ms,
                }
                for g in self.groups
            ],
            "conversions": [
                {
                    "value": c.value,
                    "from": _format_to_json(c.source),
                    "to": _format_to_json(c.destination),
                    "backend": c.backend,
                    "cost_ms": c.cost_ms,
                }
                for c in self.conversions
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Placement:
        """PlacementError, naming what is missing, for anything that `to_json` did not write or a person did
        not edit well.
        """
        try:
            if data["version"] != _JSON_VERSION:
                raise PlacementError(
                    f"placement of version {data['version']}; this release reads version {_JSON_VERSION}"
                )
            groups = tuple(
                Group(
                    g["backend"],
                    tuple(g["nodes"]),
                    Variant(
                        tuple(map(_format_from_json, g["inputs"])),
                        tuple(map(_format_from_json, g["outputs"])),
                        tuple(sorted(g.get("options", {}).items())),
                    ),
                    g.get("cost_ms"),
                    g.get("spread_ms"),
                )
                for g in data["groups"]
            )
            conversions = tuple(
                Conversion(
                    c["value"],
                    _format_from_json(c["from"]),
                    _format_from_json(c["to"]),
                    c["backend"],
                    c.get("cost_ms"),
                )
                for c in data["conversions"]
            )
            target = Target(data["device"], data["threads"])
        except (KeyError, TypeError) as error:
            raise PlacementError(f"not a placement: {error!r}") from None
        return cls(
            groups,
            conversions,
            target,
            data.get("predicted_ms"),
            data.get("optimal", False),
            data.get("method", "manual"),
            data.get("terms_ms", {}),
        )


def _format_to_json(format: Format) -> dict[str, Any]:
    return {"dtype": format.dtype, "layout": list(format.layout), "device": format.device}


def _format_from_json(data: Mapping[str, Any]) -> Format:
    return Format(data["dtype"], tuple(data["layout"]), data.get("device", "cpu"))
