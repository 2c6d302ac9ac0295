"""What backends have reached with other networks, here or where a package's priors were made: the next
network's guesses begin with it.

It draws no bound. As guesses do, it orders what is measured first, and says who is compared in `quick`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from collage_core.backend import Backend
from collage_core.costs.database import CostDatabase
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.roofline import PEAKS_VERSION
from collage_core.errors import CollageError
from collage_core.measuring.machine import Machine
from collage_core.plugins import Registry
from collage_core.priors import Priors, is_share
from collage_core.target import Target

__all__ = [
    "PRIORS",
    "brought_priors",
    "keep_priors",
    "known_priors",
    "medians",
    "priors_environment",
    "priors_of",
]

PRIORS = "priors"
"""Kind of the key under which they are kept, of each backend."""
_SHARES = "shares"


def priors_environment(backend: Backend, target: Target, registry: Registry | None = None) -> dict[str, str]:
    """What stored priors are valid for: they are shares of peaks that were measured in one way. registry: see
    `environment_of`.
    """
    return {**environment_of(backend, target, None, registry), "peaks": PEAKS_VERSION}


def brought_priors(registry: Registry) -> dict[str, dict[str, float]]:
    """By backend and kind of kernel (`Estimates.reached`) the share of the roofline, as packages have it."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for priors in registry.priors:
        if priors.peaks == PEAKS_VERSION:
            found.setdefault(priors.backend, []).append(priors.shares)
    return {backend: medians(shares) for backend, shares in found.items()}


def known_priors(machine: Machine) -> dict[str, dict[str, float]]:
    """The same of the machine's backends. What was seen here of a kind comes before what packages bring."""
    brought = brought_priors(machine.registry)
    return {
        name: brought.get(name, {}) | _shares(machine.database.get(_key(machine, name)))
        for name in machine.backends
    }


def priors_of(backend: str, database: CostDatabase) -> Priors:
    """What its kernels have reached, for a package to bring: of each kind the median of what was seen last on
    each machine, by each version and number of threads. CollageError where there is none, which lists of whom
    there is.
    """
    stored = [c for c in database.items() if c.key.kind == PRIORS]
    shares = medians(
        _shares(c.record)
        for c in stored
        if c.key.backend == backend and c.key.environment.get("peaks") == PEAKS_VERSION
    )
    if not shares:
        known = ", ".join(sorted({c.key.backend for c in stored})) or "none"
        raise CollageError(f"what kernels of {backend!r} reach is not known; of these it is: {known}")
    return Priors(backend, PEAKS_VERSION, shares)


def keep_priors(machine: Machine, reached: Mapping[str, Mapping[str, float]]) -> None:
    """What was reached last stands for its kind; other kinds stay, but for what others add just now."""
    for name, shares in reached.items():
        key = _key(machine, name)
        before = _shares(machine.database.get(key))
        if (after := {**before, **shares}) != before:
            machine.database.put(key, CostRecord("ok", details={_SHARES: after}))


def medians(told: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of each kind the median of the shares that are told of it."""
    found: dict[str, list[float]] = {}
    for shares in told:
        for kind, share in shares.items():
            found.setdefault(kind, []).append(share)
    return {kind: median(shares) for kind, shares in found.items()}


def _key(machine: Machine, name: str) -> CostKey:
    environment = priors_environment(machine.backends[name], machine.target, machine.registry)
    return CostKey(PRIORS, "", "", name, environment, Policy())


def _shares(record: CostRecord | None) -> dict[str, float]:
    """Empty where there are none, or damaged ones."""
    told: Any = {} if record is None else record.details.get(_SHARES)
    items: Iterable[tuple[Any, Any]] = told.items() if isinstance(told, dict) else ()
    return {str(kind): share for kind, share in items if is_share(share)}
