"""What is to be said of a bundle that was looked at again: from facts to sentences and a status."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from collage_core.candidates import Constraints
from collage_core.costs.ratio import FEWEST_SITTINGS, HOPELESS, Ratio, ratio_text
from collage_core.runtime.origin import VersionChange

__all__ = [
    "Facts",
    "Made",
    "Prediction",
    "Shown",
    "Status",
    "Verdict",
    "backend_of_label",
    "status_of",
    "verdicts",
]

_SIMPLER = 0.01
"""By so much, relative, one library may be faster without a reproach: that is given away for being simple."""
_DAYS = 0.05
"""By so much ratios of different days differ though nothing has changed, which no interval knows."""
_WORTH = 0.02
"""What is predicted to gain less than this share is no reason to optimise again."""
_MOVED = 0.02
"""By so much, relative, a median must differ for "faster now" and "slower now"."""


class Status(IntEnum):
    """What `collage check` ends with; of several the first that is here but BEST."""

    BEST = 0
    WRONG = 1
    SLOWER = 3
    STALE = 4


@dataclass(frozen=True, slots=True)
class Shown:
    """What one library on its own has shown beside the placement: its time over the placement's, None where
    they were not compared, and its median.
    """

    ratio: Ratio | None
    median_ms: float | None


@dataclass(frozen=True, slots=True)
class Made:
    """What a bundle says of how it was made, as far as it does.

    chosen: the label of what was chosen. median_ms: of it. singles: libraries alone that ran beside it, by
    label. took_part: backends. alone_ms: predicted from costs alone, of what was chosen, and the least of all
    placements. made_at: seconds since 1970. max_error: what it was allowed to be off by on inputs that
    anybody can make up, None where it was not limited, by a person's own metric, or on inputs that nobody has
    now. is_limited: whether its error was limited in any way.
    """

    model: str | None = None
    chosen: str | None = None
    median_ms: float | None = None
    singles: Mapping[str, Shown] = field(default_factory=dict)
    took_part: tuple[str, ...] | None = None
    alone_ms: tuple[float, float] | None = None
    constraints: Constraints = field(default_factory=Constraints)
    made_at: float | None = None
    max_error: float | None = None
    is_limited: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """What costs that are known by now say, alone and not in place: of the placement, and the least of all.

    nodes: by backend, how many nodes the best placement gives it. newer: costs among these that were measured
    after the bundle was made.
    """

    placement_ms: float
    least_ms: float
    nodes: Mapping[str, int]
    newer: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found when the bundle `file` was looked at.

    wrong: why its answers are not the reference's, None where they are. error: how far they are off, as
    docs/measuring.md defines it. median_ms: None where they are wrong. own: backends that run a part.
    singles: libraries alone that ran beside it, by label; not_compared: why others did not, by name.
    versions: those that are others now. processor: models of then and now, where they differ. amplifies:
    whether answers are right for what the model makes of rounding. is_random: whether some
    hang on drawn numbers.
    """

    file: str
    made: Made
    wrong: str | None
    error: float | None
    median_ms: float | None
    own: tuple[str, ...]
    singles: Mapping[str, Shown] = field(default_factory=dict)
    not_compared: Mapping[str, str] = field(default_factory=dict)
    versions: tuple[VersionChange, ...] = ()
    processor: tuple[str, str] | None = None
    prediction: Prediction | None = None
    amplifies: bool = False
    is_random: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence, what it is about, and what it alone would have the command end with."""

    about: str
    status: Status
    text: str


def status_of(found: Sequence[Verdict]) -> Status:
    """The gravest."""
    return min((v.status for v in found if v.status is not Status.BEST), default=Status.BEST)


def verdicts(facts: Facts) -> tuple[Verdict, ...]:
    """In the order in which a person wants to know."""
    found = list(_said(facts))
    if status_of(found) in (Status.SLOWER, Status.STALE):
        model = facts.made.model or "MODEL.onnx"
        text = f"optimise again, with the options of then: collage optimize {model} -o {facts.file}"
        found.append(Verdict("advice", Status.BEST, text))
    return tuple(found)


def _right(facts: Facts) -> str:
    off = f"{facts.error:.1g} of the output's scale" if facts.error else ""
    if facts.amplifies:
        told = f"off by {off}, no more than twice what rounding alone makes of this model"
    else:
        told = "the same as the reference's" + (off and f", within {off}")
    return told + ("; what hangs on random numbers, by range alone" if facts.is_random else "")


def _said(facts: Facts) -> Iterator[Verdict]:
    if facts.wrong is not None:
        yield Verdict("answers", Status.WRONG, f"answers: not the reference's: {facts.wrong}")
    else:
        yield Verdict("answers", Status.BEST, f"answers: {_right(facts)}")
        yield _speed(facts)
        if facts.processor is None:
            yield from _since_then(facts)
    for change in facts.versions:
        yield Verdict("versions", Status.STALE, str(change))
    if facts.processor is not None:
        then, now = facts.processor
        text = f"made on another processor ({then}; this is {now}): figures of then do not compare"
        yield Verdict("processor", Status.STALE, text)
    yield from _predicted(facts)
    for name, reason in facts.not_compared.items():
        yield Verdict("not compared", Status.BEST, f"not compared with {name}: {reason}")


def _speed(facts: Facts) -> Verdict:
    took = f"speed: {_ms(facts.median_ms)}"
    best = _best(facts.singles)
    if best is None:
        return Verdict("speed", Status.BEST, f"{took}; no single library ran beside it")
    ratio = facts.singles[best].ratio
    assert ratio is not None
    other = "other " if len(facts.own) == 1 and facts.own != (backend_of_label(best),) else ""
    text = f"{took}; the best {other}single library now is {best} at {_ms(facts.singles[best].median_ms)}"
    text += f" ({ratio_text(ratio.value, ratio.half_interval)})"
    faster = [label for label, shown in facts.singles.items() if _is_faster(shown.ratio)]
    if faster:
        return Verdict("speed", Status.SLOWER, f"{text}: {' and '.join(faster)} alone is faster")
    if not ratio.is_told:
        text += "; too few sittings to tell which is faster (--budget gives it more)"
    elif not (ratio.is_above_one or ratio.is_below_one):
        text += "; as fast, as far as can be told"
    return Verdict("speed", Status.BEST, text)


def _is_faster(ratio: Ratio | None) -> bool:
    """Whether a library alone, whose ratio this is, is faster beyond what is uncertain and simple."""
    return ratio is not None and ratio.is_below_one and ratio.value < 1.0 / (1.0 + _SIMPLER)


def _since_then(facts: Facts) -> Iterator[Verdict]:
    """Beside the best single library: how it stood when it was made, and how it does."""
    best_then, best = _best(facts.made.singles), _best(facts.singles)
    if best_then is None or best is None:
        return
    then, now = facts.made.singles[best_then].ratio, facts.singles[best].ratio
    assert then is not None
    assert now is not None
    text = f"when it was made that was {ratio_text(then.value, then.half_interval)}"
    text += "" if best == best_then else f", and {best_then}"
    if _has_fallen(then, now):
        yield Verdict("since then", Status.SLOWER, f"{text}: {_cause(facts, best)}")
    else:
        yield Verdict("since then", Status.BEST, text)


def _has_fallen(then: Ratio, now: Ratio) -> bool:
    """Whether less is left of an advantage, beyond what is uncertain of both."""
    if now.inverse.times(then.value).is_beyond(HOPELESS) and then.times(1.0 / now.value).is_beyond(HOPELESS):
        return True
    if min(then.sittings, now.sittings) < FEWEST_SITTINGS:
        return False
    apart = math.log(then.value / now.value)
    uncertain = sum(math.log1p(r.half_interval / r.value) for r in (then, now))
    return apart > max(uncertain, math.log1p(_DAYS))


def _cause(facts: Facts, best: str) -> str:
    """Which versions have changed that may be to blame; medians say who is faster or slower than then."""
    rival = backend_of_label(best)
    then = facts.made.singles.get(best)
    faster = then is not None and _ratio(facts.singles[best].median_ms, then.median_ms) < 1.0 - _MOVED
    slower = _ratio(facts.median_ms, facts.made.median_ms) > 1.0 + _MOVED
    parts = []
    for change in facts.versions:
        went = f"went from {change.then} to {change.now} since"
        name = change.backend if change.what == "library" else f"{change.backend}'s plugin"
        if change.backend == rival:
            parts.append(f"{name} {went}" + (", and is faster now" if faster else ""))
        elif change.backend in facts.own:
            parts.append(
                f"{name}, which runs a part of this, {went}" + (", and this is slower now" if slower else "")
            )
    return "; ".join(parts) or "no version of theirs has changed since, so the machine may have"


def _predicted(facts: Facts) -> Iterator[Verdict]:
    prediction, alone_ms = facts.prediction, facts.made.alone_ms
    if prediction is None or alone_ms is None:
        return
    chosen_ms, least_ms = alone_ms
    # What was chosen may have been predicted to be slower than the best, and have been faster when it ran.
    excused = max(1.0, chosen_ms / least_ms)
    if prediction.least_ms * excused >= (1.0 - _WORTH) * prediction.placement_ms:
        return
    who = " and ".join(f"{name} ({count} nodes)" for name, count in prediction.nodes.items())
    since = "costs imported or measured since" if prediction.newer else "costs that are known here"
    newer = f" ({prediction.newer} newer than the bundle, for this processor)" if prediction.newer else ""
    text = f"{since}{newer} predict another placement to be faster: {_ms(prediction.least_ms)} for {who} "
    yield Verdict("costs", Status.STALE, f"{text}against {_ms(prediction.placement_ms)}")


def backend_of_label(label: str) -> str:
    """Of a single backend's label (`pipeline.proof.Single`), which may say that the reference helps."""
    return label.partition("+")[0]


def _best(singles: Mapping[str, Shown]) -> str | None:
    """Label of the fastest that was compared."""
    ratios = {label: s.ratio.value for label, s in singles.items() if s.ratio is not None}
    return min(ratios, key=ratios.__getitem__, default=None)


def _ratio(ms: float | None, other_ms: float | None) -> float:
    return ms / other_ms if ms and other_ms else 1.0


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} ms" if value < 1e3 else f"{value:.0f} ms"
