"""The proof: what the searches found and every backend on its own, end to end, in one run that chooses and
one that confirms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from collage_core.costs.ratio import losses_of, ratios_between, sittings_of, with_turns_of
from collage_core.costs.record import CostRecord
from collage_core.errors import BackendError
from collage_core.pipeline.comparison import Comparison
from collage_core.placement import Placement

__all__ = ["COLLAGE", "HOPELESS", "MIX", "Compare", "Proof", "Single", "distinct", "label_of", "prove"]

COLLAGE = "collage"
"""Name of the chosen placement among the contenders."""

MIX = "mix"
"""Label of the op level's own placement."""

HOPELESS = 2.5
"""What is predicted to be this many times slower than the mix is not run: its prediction says enough."""

_SIMPLER = 0.01
"""What one library may be slower than a mix of several, relative to it, and still be preferred."""

Compare = Callable[[str, Mapping[str, Placement], Collection[str]], Comparison]
"""(title, placements by contender's name, names of those whose parts are timed as well)."""


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
    Where that second run contradicts the first, both together choose again; if they choose another one, a
    third run confirms it.

    found: what the searches found, by label, the last search's last. What fails or answers wrongly as a whole
    is not chosen. BackendError if nothing is left.
    """
    limit_ms = (found[MIX].predicted_ms or 0.0) * HOPELESS
    found = {label_of(p, singles, label): p for label, p in found.items()}
    *_, (favourite, placement) = found.items()
    placements = distinct({favourite: placement, **found, **_of(singles)})
    rivals = {
        label: p
        for label, p in placements.items()
        if label != favourite and (label in found or (p.predicted_ms or 0.0) <= limit_ms)
    }
    comparisons: list[Comparison] = []
    records: dict[str, CostRecord] = {}
    alone = _alone(placements, singles)
    order, reasons = [favourite], []
    if rivals:
        choosing = compare("choosing", {COLLAGE: placement, **rivals}, ())
        comparisons.append(choosing)
        records = _by_label(choosing, favourite)
        order = _ranked(records, alone)
        reasons = [f"{label}: {r.reason}" for label, r in records.items() if not r.ok]
    running = list(order)
    # What was hopelessly slow is better than nothing: the reference, above all.
    untried = [label for label in placements if label != favourite and label not in rivals]
    order += sorted(untried, key=lambda label: placements[label].predicted_ms or math.inf)
    chosen_anew = False
    while order:
        label = order.pop(0)
        standing = {name: placements[name] for name in placements if name in running and name != label}
        confirming = compare("confirming", {COLLAGE: placements[label], **standing}, [COLLAGE])
        comparisons.append(confirming)
        if not confirming.records[COLLAGE].ok:
            reasons.append(f"{label}: {confirming.records[COLLAGE].reason}")
            continue
        if not chosen_anew and (better := _beaten_by(confirming)):
            # Once: what then confirms has chosen nothing, whatever it says.
            chosen_anew = True
            again = _by_label(confirming, label)
            both = {k: with_turns_of(r, again[k]) for k, r in records.items() if k in again and again[k].ok}
            ranked = [k for k in _ranked(both, alone) if k == label or k in order]
            said = f"{label} was slower than {better} in the run to confirm it"
            if ranked and ranked[0] != label:
                note(f"{said}, and than {ranked[0]} in both together, which is chosen now")
                order = [*ranked, *(k for k in order if k not in ranked)]
                continue
            note(f"{said}, but of both together it is still the best")
        for reason in reasons:
            note(f"not chosen, {reason}")
        return Proof(placements[label], label, tuple(comparisons), tuple(reasons))
    raise BackendError(f"no placement runs as a whole: {'; '.join(reasons)}")


def _alone(placements: Mapping[str, Placement], singles: Sequence[Single]) -> set[str]:
    """Labels of what is one library's alone, be it that a search found it."""
    simple = {s.placement.digest for s in singles if s.alone and s.placement is not None}
    return {label for label, p in placements.items() if p.digest in simple}


def _of(singles: Sequence[Single]) -> dict[str, Placement]:
    return {s.label: s.placement for s in singles if s.placement is not None}


def label_of(placement: Placement, singles: Sequence[Single], otherwise: str) -> str:
    """What one backend runs goes by its name, be it that a search found it."""
    return next((label for label, p in _of(singles).items() if p.digest == placement.digest), otherwise)


def distinct(placements: Mapping[str, Placement]) -> dict[str, Placement]:
    """Of equal placements the first."""
    first: dict[str, str] = {}
    for label, p in placements.items():
        first.setdefault(p.digest, label)
    return {label: p for label, p in placements.items() if first[p.digest] == label}


def _by_label(comparison: Comparison, ours: str) -> dict[str, CostRecord]:
    """The records of a comparison in which `COLLAGE` was the placement labelled `ours`."""
    return {ours if name == COLLAGE else name: r for name, r in comparison.records.items()}


def _beaten_by(confirming: Comparison) -> str | None:
    """Of what was faster than the chosen placement, beyond what is uncertain or given away for being simple,
    the fastest.
    """
    ratios = {name: confirming.ratio(COLLAGE, name) for name in confirming.records if name != COLLAGE}
    better = {
        name: r.median
        for name, r in ratios.items()
        if r is not None and r.median - 1.0 > max(r.uncertainty, _SIMPLER)
    }
    return max(better, key=better.__getitem__, default=None)


def _ranked(records: Mapping[str, CostRecord], alone: set[str]) -> list[str]:
    """Labels of those that ran, the best first: whose time over that of whatever beats it most is the least.

    Each is compared with every other directly. Their ratios to a third one, taken round by round, would add
    that one's noise to theirs, and may contradict the direct ones. One library comes before a mix of several
    where no difference can be told: it is simpler.
    """
    ratios = ratios_between({label: sittings_of(r) for label, r in records.items() if r.ok})
    losses = losses_of(ratios)
    order = sorted(losses, key=losses.__getitem__)
    best = next((label for label in order if label in alone), None)
    if best is not None and order[0] not in alone:
        ratio = ratios[best].get(order[0])
        # What may well be real is not given away for being simple.
        if ratio is not None and ratio.median - 1.0 <= min(ratio.uncertainty, _SIMPLER):
            order.remove(best)
            order.insert(0, best)
    return order
