"""What a run of the fuzz has found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CRASHED", "REFUSED", "RIGHT", "UNTOLD", "WRONG", "KernelFind", "Outcome", "Report"]

RIGHT, REFUSED, WRONG, CRASHED = "right", "refused", "wrong", "crashed"
UNTOLD = "untold"
"""Neither ONNX Runtime nor the reference runs the model, so nothing can be said of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model. place: "passes", "optimize", or the placement that is wrong or crashed.

    differing: the first node on which the two opinions are not one.
    """

    sample: str
    status: str
    operators: tuple[str, ...]
    place: str = ""
    reason: str = ""
    differing: str | None = None
    code: str | None = None

    @property
    def legal(self) -> bool:
        """Whether a refusal is one line of one of Collage's own errors, that names what it is about and one
        of the limits that it is known to have. A node that cannot be evaluated is a fault, not a limit.
        """
        said = self.reason
        named = _NAMES.search(said) and _LIMITS.search(said)
        return self.status == REFUSED and "\n" not in said and bool(named)


_NAMES = re.compile(r"^(ModelError|PlacementError): .*(node|value|input|operator|dimension|computed by)")
_LIMITS = re.compile(
    "not supported|cannot be inferred|open dimension|implements no|not valid at opset|more than this machine"
)


@dataclass(frozen=True, slots=True)
class KernelFind:
    """A kernel that was offered and is wrong, or failed, or took the worker with it."""

    sample: str
    backend: str
    status: str
    operators: tuple[str, ...]
    reason: str
    code: str

    @property
    def key(self) -> tuple[str, ...]:
        return self.backend, self.status, "+".join(self.operators), masked(self.reason)


@dataclass(slots=True)
class Report:
    """Outcomes of all models, and what kernels failed on the way."""

    outcomes: list[Outcome] = field(default_factory=list)
    kernels: list[KernelFind] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status in (WRONG, CRASHED)]

    @property
    def illegal(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == REFUSED and not o.legal]

    def to_json(self) -> dict[str, Any]:
        return {
            "models": len(self.outcomes),
            "seconds": round(self.seconds, 1),
            "outcomes": dict(Counter(o.status for o in self.outcomes)),
            "illegal_refusals": [_told(o) for o in self.illegal],
            "refusals": _counted(masked(o.reason) for o in self.outcomes if o.status == REFUSED),
            "failures": [_told(o) for o in self.failures],
            "opinions_differ": _counted(masked(o.differing) for o in self.outcomes if o.differing),
            "kernels": [
                {"backend": k[0], "status": k[1], "operators": k[2], "reason": k[3], "count": count}
                for k, count in Counter(f.key for f in self.kernels).most_common()
            ],
        }

    def lines(self) -> Iterable[str]:
        told = self.to_json()
        counts = ", ".join(f"{n} {status}" for status, n in sorted(told["outcomes"].items()))
        yield f"{told['models']} models in {told['seconds']} s: {counts or 'none'}"
        for o in self.failures:
            yield f"  {o.status}: {o.sample}, {o.place}: {o.reason.splitlines()[-1] if o.reason else ''}"
        for reason, count in told["refusals"].items():
            yield f"  refused ({count}): {reason}"
        for o in self.illegal:
            yield f"  no legal refusal: {o.sample}: {o.reason.splitlines()[-1]}"
        for what, count in told["opinions_differ"].items():
            yield f"  opinions differ ({count}): {what}"
        for k in told["kernels"]:
            yield f"  kernel ({k['count']}) {k['backend']} {k['status']}: {k['operators']}: {k['reason']}"


def masked(text: str) -> str:
    """Without what differs between alike findings: names and numbers."""
    text = re.sub(r"'[^']*'", "'...'", text)
    text = re.sub(r"\bp?\d*/?[A-Za-z]+\d+ \(", "(", text)
    return re.sub(r"-?\b\d+(\.\d+)?(e[-+]?\d+)?\b", "N", text)[:240]


def _counted(texts: Iterable[str]) -> dict[str, int]:
    return dict(Counter(texts).most_common())


def _told(o: Outcome) -> dict[str, Any]:
    return {
        "sample": o.sample,
        "status": o.status,
        "place": o.place,
        "reason": o.reason[-1500:],
        "code": o.code,
    }
