"""The proof: what the searches found and every backend on its own, end to end, in one run that chooses and
one that confirms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from collage_core.costs.ratio import FEWEST_SITTINGS, HOPELESS, Ratio, losses_of, ratios_between, sittings_of
from collage_core.errors import BackendError
from collage_core.measuring.comparison import Comparison
from collage_core.placement import Placement

__all__ = [
    "CHOOSING",
    "COLLAGE",
    "CONFIRMING",
    "IN_PLACE",
    "IN_PLACE_AGAIN",
    "LEFT_OUT",
    "LONGEST_MS",
    "MIX",
    "Compare",
    "Proof",
    "Single",
    "distinct",
    "label_of",
    "prove",
    "prove_beside_left_out",
    "single_label",
]

COLLAGE = "collage"
"""Name of the chosen placement among the contenders."""

IN_PLACE, IN_PLACE_AGAIN, CHOOSING = "in place", "in place again", "choosing"
CONFIRMING, _CONFIRMING_AGAIN = "confirming", "confirming again"
LEFT_OUT = "beside those left out"
"""Titles of comparisons: what teaches costs in place, what chooses, and what comes after that."""

MIX = "mix"
"""Label of the op level's own placement."""

LONGEST_MS = 60_000.0
"""What one run is predicted to take longer than is not run."""

_MUCH = 0.05
"""What is given away for being simpler where too few sittings tell the difference."""
_SIMPLER = 0.01
"""What one library may be slower than a mix of several, relative to it, and still be preferred."""


def single_label(backend: str, alone: bool, way: str = "") -> str:
    """Of one backend on its own: see `Single`."""
    return ", ".join(filter(None, [backend if alone else f"{backend}+reference", way]))


class Compare(Protocol):
    """Placements by contender's name, measured beside each other.

    timed: names of those whose parts are timed as well. thorough: in twice as many sittings.
    """

    def __call__(
        self, title: str, placements: Mapping[str, Placement], timed: Collection[str], *, thorough: bool = ...
    ) -> Comparison: ...


@dataclass(frozen=True, slots=True)
class Single:
    """One backend on its own, `reference` running what it declines.

    placement: None where not even that covers the graph (`reason` says why). alone: whether `reference` runs
    nothing. way: how it is served, where several ways stand beside each other (`Serving.text`).
    """

    backend: str
    placement: Placement | None
    alone: bool
    reason: str | None = None
    way: str = ""

    @property
    def label(self) -> str:
        return single_label(self.backend, self.alone, self.way)


@dataclass(frozen=True, slots=True)
class Proof:
    """placement: the one chosen, and its label. comparisons: in order, in each of which it goes by the name
    `COLLAGE` and the others by their labels; the last one confirms. rejected: what failed or was wrong as a
    whole, with the reason. beaten_by: contenders that were faster when it was confirmed, which a longer run
    could neither confirm nor refute, if there was one. is_confirmed: whether the last comparison did not
    choose it.
    """

    placement: Placement
    label: str
    comparisons: tuple[Comparison, ...] = ()
    rejected: tuple[str, ...] = ()
    beaten_by: tuple[str, ...] = ()
    is_confirmed: bool = True


def prove(
    found: Mapping[str, Placement],
    singles: Sequence[Single],
    compare: Compare,
    note: Callable[[str], object],
    *,
    confirms: bool = True,
    most_standing: int | None = None,
    has_time: Callable[[Collection[Placement]], bool] = lambda placements: True,
) -> Proof:
    """Choose the fastest end to end, then measure all again: the run that chooses flatters what it chose.
    Where that second run contradicts the first, a third one, of twice as many sittings, decides: what is
    faster there as well is chosen.

    confirms: whether there is a second run; without it the first one's figures are those of the choice.
    most_standing: so many contenders it has at most, None for all that came near. has_time: asked whether
    there is time for a third run of these that tells anything. Without it what was faster in the second is
    chosen: that run had fewer to choose from.

    found: what the searches found, by label, the last search's last. What fails or answers wrongly as a whole
    is not chosen. BackendError if nothing is left.
    """
    found = {label_of(p, singles, label): p for label, p in found.items()}
    *_, (favourite, placement) = found.items()
    placements = distinct({favourite: placement, **found, **_of(singles)})
    alone = _alone(placements, singles)
    comparisons: list[Comparison] = []

    def measured(
        title: str, ours: str, others: Collection[str], timed: Collection[str], *, thorough: bool = False
    ) -> Comparison:
        """By label."""
        contenders = {COLLAGE: placements[ours], **{o: placements[o] for o in others if o != ours}}
        comparison = compare(title, contenders, timed, thorough=thorough).renamed({COLLAGE: ours})
        comparisons.append(comparison)
        return comparison

    rivals = [
        label
        for label, p in placements.items()
        if label != favourite and (label in found or (p.predicted_ms or 0.0) <= LONGEST_MS)
    ]
    order, standing, reasons = [favourite], [favourite], []
    if rivals:
        choosing = measured(CHOOSING, favourite, rivals, ())
        order = _ranked(choosing, alone)
        standing = _not_hopeless(choosing, order)[:most_standing]
        reasons = [f"{label}: {r.reason}" for label, r in choosing.records.items() if not r.ok]
        for label, ratio in _seen_faster(choosing, order, alone).items():
            note(
                f"too few sittings to tell: {order[0]} is preferred for being simpler, "
                f"though {label} took {ratio:.2f} of its time"
            )
    # What was not run is better than nothing.
    untried = [label for label in placements if label != favourite and label not in rivals]
    order += sorted(untried, key=lambda label: placements[label].predicted_ms or math.inf)
    if comparisons and order and not confirms:
        chosen = order[0]
        return Proof(
            placements[chosen],
            chosen,
            tuple(c.renamed({chosen: COLLAGE}) for c in comparisons),
            tuple(reasons),
            is_confirmed=False,
        )
    for label in order:
        confirming = measured(CONFIRMING, label, standing, [COLLAGE])
        faster = _faster_than(label, confirming, alone)
        chosen, beaten_by, is_confirmed = label, faster, confirms
        if faster:
            slower = f"{label} was slower than {faster[0]} in the run to confirm it"
            again = None
            if has_time([placements[other] for other in standing]):
                again = measured(_CONFIRMING_AGAIN, label, standing, [COLLAGE, *faster], thorough=True)
            if again is not None and _tells(again, label, faster[0]):
                note(f"{slower}: measured again, for longer")
                confirming = again
            else:
                note(f"{slower}, and no time is left to measure for longer")
                is_confirmed = False
            chosen, beaten_by = _decided(label, faster, confirming, alone)
        if not (record := confirming.records[label]).ok:
            reasons.append(f"{label}: {record.reason}")
            standing = [other for other in standing if other != label]
            continue
        if faster:
            note(f"{chosen} is chosen" + (f"; {', '.join(beaten_by)} may be faster" if beaten_by else ""))
        return Proof(
            placements[chosen],
            chosen,
            tuple(c.renamed({chosen: COLLAGE}) for c in comparisons),
            tuple(reasons),
            tuple(beaten_by),
            is_confirmed,
        )
    raise BackendError(f"no placement runs as a whole: {'; '.join(reasons)}")


def prove_beside_left_out(
    proof: Proof,
    left_out: Mapping[str, Placement],
    compare: Compare,
    note: Callable[[str], object],
) -> Proof:
    """What was chosen beside what left after too few sittings to tell how far behind it is, by label.

    The confirmation stays the last of the comparisons. What is faster after all is told of (`beaten_by`).
    """
    comparison = compare(LEFT_OUT, {COLLAGE: proof.placement, **left_out}, ())
    faster = _faster_than(COLLAGE, comparison, left_out)
    if faster:
        note(f"{', '.join(faster)} was left out when it was behind, and is faster after all")
    comparisons = (*proof.comparisons[:-1], comparison, *proof.comparisons[-1:])
    return replace(proof, comparisons=comparisons, beaten_by=(*proof.beaten_by, *faster))


def _decided(
    label: str, faster: Sequence[str], again: Comparison, alone: Collection[str]
) -> tuple[str, list[str]]:
    """What to choose where `faster` were so when `label` was confirmed, and what may be faster than that.

    What is faster once more is chosen. What is not known to be slower now may still be faster.
    """
    if now_faster := _faster_than(label, again, alone):
        return now_faster[0], _faster_than(now_faster[0], again, alone)
    ratios = {name: again.ratio(label, name) for name in faster}
    return label, [name for name, r in ratios.items() if r is not None and not r.is_below_one]


def _tells(again: Comparison, label: str, other: str) -> bool:
    """Whether a third run has come so far that it says more than the second. A failure says enough."""
    ratio = again.ratio(label, other)
    return not again.is_cut_short or ratio is None or ratio.sittings >= FEWEST_SITTINGS


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


def _faster_than(ours: str, comparison: Comparison, alone: Collection[str]) -> list[str]:
    """What was faster than `ours` beyond what is uncertain and by more than is given away for being simple,
    the fastest first. Between a mix and one library, a mix has to stand as it came, too.
    """
    found: dict[str, float] = {}
    for name in comparison.records.keys() - {ours}:
        ratio = comparison.ratio(ours, name)
        is_faster = ratio is not None and ratio.is_above_one
        if (ours in alone) != (name in alone):
            mix, simple = (name, ours) if ours in alone else (ours, name)
            came = comparison.ratio_as_it_came(mix, simple)
            if came is not None and came.speaks_against:
                ratio, is_faster = came, name == simple
        if is_faster and ratio is not None and ratio.value > 1.0 + _SIMPLER:
            found[name] = ratio.value
    return sorted(found, key=found.__getitem__, reverse=True)


def _not_hopeless(choosing: Comparison, order: Sequence[str]) -> list[str]:
    """Of those in order, those who come near the first."""
    ratios = {label: choosing.ratio(label, order[0]) for label in order[1:]}
    near = [label for label, r in ratios.items() if r is None or not r.is_beyond(HOPELESS)]
    return [*order[:1], *near]


def _seen_faster(choosing: Comparison, order: Sequence[str], alone: Collection[str]) -> dict[str, float]:
    """Mixes that took less time than one library that comes first, though in too few sittings to tell."""
    if order[:1] and order[0] not in alone:
        return {}
    ratios = {label: choosing.ratio(label, order[0]) for label in order[1:] if label not in alone}
    return {n: r.value for n, r in ratios.items() if r is not None and r.value < 1.0 and not r.is_told}


def _ranked(choosing: Comparison, alone: Collection[str]) -> list[str]:
    """Labels of those that ran, the best first: whose time over that of whatever beats it most is the least.

    Each is compared with every other directly. Their ratios to a third one, taken round by round, would add
    that one's noise to theirs, and may contradict the direct ones. One library comes before a mix of several
    where no difference can be told, and where it was faster as it came: it is simpler.
    """
    ratios = ratios_between({label: sittings_of(r) for label, r in choosing.records.items() if r.ok})
    losses = losses_of(ratios)
    order = sorted(losses, key=losses.__getitem__)
    if order and order[0] not in alone:
        preferred = [
            label
            for label in order
            if label in alone and _is_preferred(ratios[label].get(order[0]), choosing, label, order[0])
        ]
        order = [*preferred[:1], *(label for label in order if label not in preferred[:1])]
    return order


def _is_preferred(ratio: Ratio | None, choosing: Comparison, simple: str, mix: str) -> bool:
    """Whether one library is to be taken rather than the mix. ratio: its time over that of the mix."""
    if ratio is None:
        return False
    came = choosing.ratio_as_it_came(mix, simple)
    if came is not None and came.speaks_against:
        return True
    if not ratio.is_told:
        # One that left after a sitting or two is far behind, and not preferred for that.
        return ratio.sittings >= FEWEST_SITTINGS or ratio.value <= 1.0 + _MUCH
    # What may well be real is not given away for being simple.
    return ratio.value - 1.0 <= min(ratio.half_interval, _SIMPLER)
