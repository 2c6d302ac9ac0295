"""The proof: what the searches found and every backend on its own, end to end, in one run that chooses and
one that confirms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collage_core.costs.ratio import ratio_of
from collage_core.costs.record import CostRecord
from collage_core.errors import BackendError
from collage_core.pipeline.comparison import Comparison
from collage_core.placement import Placement

__all__ = ["COLLAGE", "MIX", "Compare", "Proof", "Single", "prove"]

COLLAGE = "collage"
"""Name of the chosen placement among the contenders."""

MIX = "mix"
"""Label of the op level's own placement."""

_HOPELESS = 5.0
"""What is predicted to be this many times slower than the mix is not run: its prediction says enough."""

_SIMPLER = 0.01
"""What one library may be slower than a mix of several, relative to it, and still be preferred."""

Compare = Callable[[str, Mapping[str, Placement], bool], Comparison]
"""(title, placements by contender's name, whether to time the parts of the one named `COLLAGE`)."""


@dataclass(frozen=True, slots=True)
class Single:
    """One backend on its own, `reference` running what it declines.

    placement: None where not even that covers the graph (`reason` says why). alone: whether `reference` runs
    nothing.
    """

    backend: str
    placement: Placement | None
    alone: bool
    reason: str | None = None

    @property
    def label(self) -> str:
        return self.backend if self.alone else f"{self.backend}+reference"


@dataclass(frozen=True, slots=True)
class Proof:
    """placement: the one chosen, and its label. comparisons: in order; the last one confirms. rejected: what
    failed or was wrong as a whole, with the reason.
    """

    placement: Placement
    label: str
    comparisons: tuple[Comparison, ...] = ()
    rejected: tuple[str, ...] = ()


def prove(
    found: Mapping[str, Placement],
    singles: Sequence[Single],
    compare: Compare,
    note: Callable[[str], object],
) -> Proof:
    """Choose the fastest end to end, then measure all again: the run that chooses flatters what it chose.

    found: what the searches found, by label, the last search's last. What fails or answers wrongly as a whole
    is not chosen. BackendError if nothing is left.
    """
    *_, (favourite, placement) = found.items()
    placements = _distinct({favourite: placement, **found, **_of(singles)})
    limit_ms = (found[MIX].predicted_ms or 0.0) * _HOPELESS
    rivals = {
        label: p
        for label, p in placements.items()
        if label != favourite and (label in found or (p.predicted_ms or 0.0) <= limit_ms)
    }
    comparisons: list[Comparison] = []
    times: dict[str, float] = {favourite: 0.0}
    reasons: list[str] = []
    if rivals:
        choosing = compare("choosing", {COLLAGE: placement, **rivals}, False)
        comparisons.append(choosing)
        named = {favourite: choosing.records[COLLAGE], **{label: choosing.records[label] for label in rivals}}
        times = _ranked(named, {s.label for s in singles if s.alone})
        reasons = [f"{label}: {r.reason}" for label, r in named.items() if not r.ok]
    # What was hopelessly slow is better than nothing: the reference, above all.
    untried = [label for label in placements if label != favourite and label not in rivals]
    last = sorted(untried, key=lambda label: placements[label].predicted_ms or math.inf)
    for label in (*sorted(times, key=times.__getitem__), *last):
        standing = {name: p for name, p in placements.items() if name in times and name != label}
        confirming = compare("confirming", {COLLAGE: placements[label], **standing}, True)
        comparisons.append(confirming)
        if confirming.records[COLLAGE].ok:
            for reason in reasons:
                note(f"not chosen, {reason}")
            return Proof(placements[label], label, tuple(comparisons), tuple(reasons))
        reasons.append(f"{label}: {confirming.records[COLLAGE].reason}")
    raise BackendError(f"no placement runs as a whole: {'; '.join(reasons)}")


def _of(singles: Sequence[Single]) -> dict[str, Placement]:
    return {s.label: s.placement for s in singles if s.placement is not None}


def _distinct(placements: Mapping[str, Placement]) -> dict[str, Placement]:
    """Of equal placements the first."""
    first: dict[str, str] = {}
    for label, p in placements.items():
        first.setdefault(p.digest, label)
    return {label: p for label, p in placements.items() if first[p.digest] == label}


def _ranked(records: Mapping[str, CostRecord], alone: set[str]) -> dict[str, float]:
    """What those that ran take, relative to one of them; one library comes before a mix of several where no
    difference can be told: it is simpler.
    """
    ran = {label: r for label, r in records.items() if r.ok}
    if not ran:
        return {}
    first, *_ = ran.values()
    times = {label: ratio.median for label, r in ran.items() if (ratio := ratio_of(r, first)) is not None}
    fastest = min(times, key=times.__getitem__)
    ours = [label for label in times if label in alone]
    if ours and fastest not in alone:
        best = min(ours, key=times.__getitem__)
        ratio = ratio_of(ran[best], ran[fastest])
        # What may well be real is not given away for being simple.
        if ratio is not None and ratio.median - 1.0 <= min(ratio.uncertainty, _SIMPLER):
            times[best] = math.nextafter(times[fastest], 0.0)
    return times
