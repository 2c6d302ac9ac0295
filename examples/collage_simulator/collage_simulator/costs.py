"""What the simulated accelerator takes for what it does: declared, and told to Collage by its marks alone."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields

from collage_core.errors import CollageError

__all__ = ["VARIABLE", "SimCosts", "declared"]

VARIABLE = "COLLAGE_SIMULATOR"
"""Environment variable with other costs than the usual, as in {"launch_us": 50}."""


@dataclass(frozen=True, slots=True)
class SimCosts:
    """Microseconds, and what is done in one."""

    launch_us: float = 5.0
    """Of each kernel, or of as many as are captured."""
    transfer_us: float = 10.0
    """Of each copy from or to the host."""
    link_bytes_per_us: float = 4_000.0
    memory_bytes_per_us: float = 50_000.0
    operations_per_us: float = 1_000_000.0

    def run_us(self, operations: float, moved_bytes: float) -> float:
        """Of a kernel without its launch."""
        return operations / self.operations_per_us + moved_bytes / self.memory_bytes_per_us

    def copy_us(self, moved_bytes: float) -> float:
        return self.transfer_us + moved_bytes / self.link_bytes_per_us

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def declared() -> SimCosts:
    """As the environment says; CollageError for what it cannot say."""
    text = os.environ.get(VARIABLE, "") or "{}"
    known = {f.name for f in fields(SimCosts)}
    try:
        given = json.loads(text)
        costs = SimCosts(**{name: float(us) for name, us in given.items()})
        if not all(type(us) in (int, float) and math.isfinite(us) for us in given.values()):
            raise ValueError(text)
    except (AttributeError, OverflowError, TypeError, ValueError):
        raise CollageError(
            f"{VARIABLE} is an object of numbers by name ({', '.join(sorted(known))}), not {text!r}"
        ) from None
    if min(asdict(costs).values()) < 0.0 or 0.0 in (
        costs.link_bytes_per_us,
        costs.memory_bytes_per_us,
        costs.operations_per_us,
    ):
        raise CollageError(f"{VARIABLE}: costs are not negative, and rates are above 0; it is {text!r}")
    return costs
