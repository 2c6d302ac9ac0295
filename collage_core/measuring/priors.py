"""What backends have reached with other networks, kept so that the next one's guesses begin with it.

It draws no bound. As guesses do, it orders what is measured first, and says who is compared in `quick`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from collage_core.backend import Backend
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.record import CostKey, CostRecord, Policy
from collage_core.costs.roofline import PEAKS_VERSION
from collage_core.measuring.machine import Machine
from collage_core.plugins import Registry
from collage_core.target import Target

__all__ = ["PRIORS", "keep_priors", "known_priors", "priors_environment"]

PRIORS = "priors"
"""Kind of the key under which they are kept, of each backend."""
_SHARES = "shares"


def priors_environment(backend: Backend, target: Target, registry: Registry | None = None) -> dict[str, str]:
    """What stored priors are valid for: they are shares of peaks that were measured in one way. registry: see
    `environment_of`.
    """
    return {**environment_of(backend, target, None, registry), "peaks": PEAKS_VERSION}


def known_priors(machine: Machine) -> dict[str, dict[str, float]]:
    """By backend, and kind of kernel (`Estimates.reached`): the share of the roofline."""
    return {name: _shares(machine.database.get(_key(machine, name))) for name in machine.backends}


def keep_priors(machine: Machine, reached: Mapping[str, Mapping[str, float]]) -> None:
    """What was reached last stands for its kind; other kinds stay, but for what others add just now."""
    for name, shares in reached.items():
        key = _key(machine, name)
        before = _shares(machine.database.get(key))
        if (after := {**before, **shares}) != before:
            machine.database.put(key, CostRecord("ok", details={_SHARES: after}))


def _key(machine: Machine, name: str) -> CostKey:
    environment = priors_environment(machine.backends[name], machine.target, machine.registry)
    return CostKey(PRIORS, "", "", name, environment, Policy())


def _shares(record: CostRecord | None) -> dict[str, float]:
    """Empty where there are none, or damaged ones."""
    told: Any = {} if record is None else record.details.get(_SHARES)
    items: Iterable[tuple[Any, Any]] = told.items() if isinstance(told, dict) else ()
    return {str(kind): share for kind, share in items if isinstance(share, float) and share > 0.0}
