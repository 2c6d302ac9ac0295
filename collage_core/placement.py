"""A placement: which backend runs which nodes, in which formats. Readable, editable, reloadable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from collage_core.backend import Variant
from collage_core.errors import PlacementError
from collage_core.formats import Format
from collage_core.target import Target

__all__ = ["VIEW", "Conversion", "Group", "Placement", "is_transfer", "transfers_name"]

VIEW = "view"
"""Name that stands where a backend's would, for groups that compute nothing: their output is their input's
buffer.
"""

_TRANSFERS = "transfer:"

_JSON_VERSION = 1


def transfers_name(device: str) -> str:
    """What stands where a backend's name would, for conversions that bring a value to a device or back."""
    return _TRANSFERS + device


def is_transfer(backend: str) -> bool:
    """Whether that is what stands there."""
    return backend.startswith(_TRANSFERS)


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

    @property
    def digest(self) -> str:
        """Equal for groups that run the same kernel on the same nodes, whatever it costs."""
        formats = [[str(f) for f in of] for of in (self.variant.inputs, self.variant.outputs)]
        return _digest([self.backend, self.nodes, *formats, self.variant.options])


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

    @property
    def digest(self) -> str:
        """Equal for conversions of the same value by the same backend between the same formats."""
        return _digest([self.value, str(self.source), str(self.destination), self.backend])


@dataclass(frozen=True)
class Placement:
    """Groups in an executable order, and the conversions between them, for one target.

    graph: which one it speaks of (`structure_digest`); "" for any that has these nodes.
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
    graph: str = ""

    @cached_property
    def digest(self) -> str:
        """Equal for placements that run the same kernels in the same order, whatever they are predicted to
        cost.
        """
        parts = [[p.digest for p in of] for of in (self.groups, self.conversions)]
        return _digest([*parts, str(self.target)])

    def edited(self, groups: Iterable[Group], conversions: Iterable[Conversion] | None = None) -> Placement:
        """The same with other groups and conversions, as a person wants them: nothing is predicted of the
        whole, and nothing is known of what a group or a conversion costs that was none of it before.
        """
        own, converted = {*self.groups}, {*self.conversions}
        converting = self.conversions if conversions is None else conversions
        return Placement(
            tuple(g if g in own else _unmeasured(g) for g in groups),
            tuple(c if c in converted else _unmeasured(c) for c in converting),
            self.target,
            graph=self.graph,
        )

    def backends(self) -> tuple[str, ...]:
        """Names of the backends that run something, in order of appearance; transfers are core's own."""
        names = [*(g.backend for g in self.groups), *(c.backend for c in self.conversions)]
        return tuple(dict.fromkeys(n for n in names if n != VIEW and not is_transfer(n)))

    def devices(self) -> tuple[str, ...]:
        """Names of the devices that it keeps values on beside the host, in order of appearance."""
        formats = [f for g in self.groups for f in (*g.variant.inputs, *g.variant.outputs)]
        formats += [f for c in self.conversions for f in (c.source, c.destination)]
        return tuple(dict.fromkeys(f.device for f in formats if f.device != self.target.device))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _JSON_VERSION,
            "graph": self.graph,
            "device": self.target.device,
            "threads": self.target.threads,
            "precisions": list(self.target.precisions),
            "accelerators": list(self.target.accelerators),
            "predicted_ms": self.predicted_ms,
            "terms_ms": dict(self.terms_ms),
            "optimal": self.optimal,
            "method": self.method,
            "of": self.digest,
            "groups": [
                {
                    "backend": g.backend,
                    "nodes": list(g.nodes),
                    "inputs": [_format_to_json(f) for f in g.variant.inputs],
                    "outputs": [_format_to_json(f) for f in g.variant.outputs],
                    "options": dict(g.variant.options),
                    "cost_ms": g.cost_ms,
                    "spread_ms": g.spread_ms,
                    "of": g.digest,
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
                    "of": c.digest,
                }
                for c in self.conversions
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Placement:
        """PlacementError, naming what is missing or of the wrong type, for anything that `to_json` did not
        write or a person did not edit well. Whether it fits a graph is for `build` to see. What was measured
        and predicted is dropped where somebody has edited what it is of: see `edited`.
        """
        whole = _Fields(data, "the placement")
        if (version := whole.take("version", int)) != _JSON_VERSION:
            raise PlacementError(
                f"placement of version {version}; this release reads version {_JSON_VERSION}"
            )
        found = cls(
            tuple(_group_from_json(g) for g in whole.parts("groups", "a group")),
            tuple(_conversion_from_json(c) for c in whole.parts("conversions", "a conversion")),
            Target(
                whole.take("device", str),
                whole.take("threads", int),
                whole.texts("precisions"),
                whole.texts("accelerators"),
            ),
            whole.time_ms("predicted_ms"),
            whole.take("optimal", bool, False),
            whole.take("method", str, "manual"),
            whole.pairs("terms_ms", int, float),
            whole.take("graph", str, ""),
        )
        return found if whole.is_of(found.digest) else found.edited(found.groups)


_REQUIRED: Any = object()


class _Fields:
    """A JSON object that somebody may have edited: every value is asked for with its type. PlacementError for
    another one.
    """

    def __init__(self, data: object, what: str) -> None:
        if not isinstance(data, Mapping):
            raise PlacementError(f"not a placement: {what} is {_excerpt(data)}")
        self._data, self._what = data, what

    def take(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value of `key`, of the type `kind`; `default`, if there is one, where it is missing."""
        value = self._data.get(key, default)
        if value is _REQUIRED:
            raise PlacementError(f"not a placement: {self._what} has no {key!r}")
        if value is not default and type(value) is not kind:  # a bool is no int
            raise self._wrong(key, value)
        return value

    def is_of(self, digest: str) -> bool:
        """Whether what is told is of the thing with that digest, as far as it says."""
        return bool(self.take("of", str, digest) == digest)

    def time_ms(self, key: str) -> float | None:
        value = self._data.get(key)
        if value is not None and type(value) not in (int, float):
            raise self._wrong(key, value)
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        values: list[Any] = self.take(key, list)
        if any(type(v) is not int for v in values):
            raise self._wrong(key, values)
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        """() where it is missing."""
        values: list[Any] = self.take(key, list, [])
        if any(type(v) is not str for v in values):
            raise self._wrong(key, values)
        return tuple(values)

    def pairs(self, key: str, *kinds: type) -> dict[str, Any]:
        """An object whose values are all of one of these types; {} where it is missing."""
        pairs: dict[str, Any] = self.take(key, dict, {})
        if any(type(v) not in kinds for v in pairs.values()):
            raise self._wrong(key, pairs)
        return pairs

    def parts(self, key: str, what: str) -> list[_Fields]:
        return [_Fields(part, what) for part in self.take(key, list)]

    def format(self, key: str) -> Format:
        return _format_from_json(_Fields(self.take(key, dict), "a format"))

    def _wrong(self, key: str, value: object) -> PlacementError:
        return PlacementError(f"not a placement: {key!r} of {self._what} is {_excerpt(value)}")


_Part = TypeVar("_Part", Group, Conversion)


def _unmeasured(part: _Part) -> _Part:
    """The same, of which nothing is known."""
    if isinstance(part, Group):
        return replace(part, cost_ms=None, spread_ms=None)
    return replace(part, cost_ms=None)


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


_EXCERPT_CHARACTERS = 80


def _excerpt(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}..."


def _group_from_json(data: _Fields) -> Group:
    variant = Variant(
        tuple(map(_format_from_json, data.parts("inputs", "a format"))),
        tuple(map(_format_from_json, data.parts("outputs", "a format"))),
        tuple(sorted(data.pairs("options", str).items())),
    )
    times_ms = data.time_ms("cost_ms"), data.time_ms("spread_ms")
    group = Group(data.take("backend", str), data.integers("nodes"), variant, *times_ms)
    return group if data.is_of(group.digest) else _unmeasured(group)


def _conversion_from_json(data: _Fields) -> Conversion:
    formats = data.format("from"), data.format("to")
    cost_ms = data.time_ms("cost_ms")
    found = Conversion(data.take("value", str), *formats, data.take("backend", str), cost_ms)
    return found if data.is_of(found.digest) else _unmeasured(found)


def _format_to_json(format: Format) -> dict[str, Any]:
    return {"dtype": format.dtype, "layout": list(format.layout), "device": format.device}


def _format_from_json(data: _Fields) -> Format:
    return Format(data.take("dtype", str), data.integers("layout"), data.take("device", str, "cpu"))
