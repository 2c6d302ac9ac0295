"""From facts about a bundle to what is said of it, and how the command ends. Nothing is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from collage_core.costs.ratio import Ratio
from collage_core.pipeline.verdicts import (
    Facts,
    Made,
    Prediction,
    Shown,
    Status,
    Verdict,
    status_of,
    verdicts,
)
from collage_core.runtime.origin import VersionChange

_BEST, _WRONG, _SLOWER, _STALE = Status.BEST, Status.WRONG, Status.SLOWER, Status.STALE


def _shown(value: float, half: float = 0.01, sittings: int = 8, ms: float | None = None) -> Shown:
    return Shown(Ratio(value, half, sittings), 10.0 * value if ms is None else ms)


def _then(**singles: Shown) -> Made:
    return Made("m.onnx", "mix", 10.0, singles, ("a", "b", "mine"), (10.0, 10.0))


def _facts(**changes: Any) -> Facts:
    """Of what is as it was, and faster than two libraries."""
    usual: dict[str, Any] = {
        "file": "m.collage",
        "made": _then(a=_shown(1.2), b=_shown(1.5)),
        "wrong": None,
        "error": 3e-6,
        "median_ms": 10.0,
        "own": ("a", "mine"),
        "singles": {"a": _shown(1.2), "b": _shown(1.5)},
    }
    return Facts(**{**usual, **changes})


def _said(facts: Facts) -> tuple[Status, dict[str, Verdict]]:
    """The status, and the verdicts by what they are about."""
    found = verdicts(facts)
    by_subject = {v.about: v for v in found}
    assert len(by_subject) == len(found)
    return status_of(found), by_subject


def _a(now: str, what: str = "library") -> VersionChange:
    return VersionChange("a", what, "1.0", now)


def test_what_is_as_it_was() -> None:
    found = verdicts(_facts(not_compared={"c": "it is not installed here"}))
    assert status_of(found) is _BEST
    assert [v.text for v in found] == [
        "answers: the same as the reference's, within 3e-06 of the output's scale",
        "speed: 10 ms; the best single library now is a at 12 ms (1.200 +-0.010)",
        "when it was made that was 1.200 +-0.010",
        "not compared with c: it is not installed here",
    ]


def test_wrong_answers_come_before_all() -> None:
    facts = _facts(wrong="output 'y' differs", median_ms=None, singles={}, versions=(_a("2.0"),))
    status, said = _said(facts)
    assert status is _WRONG
    assert said["answers"].text == "answers: not the reference's: output 'y' differs"
    assert said["versions"].status is _STALE
    assert said.keys() == {"answers", "versions"}, "no figures, no advice"


@pytest.mark.parametrize(
    ("ratio", "status", "text"),
    [
        (Ratio(0.9, 0.05, 8), _SLOWER, "(0.900 +-0.050): a alone is faster"),
        (Ratio(0.995, 0.001, 8), _BEST, "(0.995 +-0.001)"),  # less than being simple is worth
        (Ratio(0.9, 0.15, 8), _BEST, "(0.900 +-0.150); as fast, as far as can be told"),
        (Ratio(0.9, 0.15, 4), _BEST, "(0.900 +-0.150); too few sittings to tell which is faster"),
        (Ratio(0.9, math.inf, 1), _BEST, "(0.900); too few sittings to tell which is faster"),
        (Ratio(0.9, 0.01, 3), _SLOWER, "(0.900 +-0.010): a alone is faster"),  # few, but far apart
        (Ratio(0.2, math.inf, 1), _SLOWER, "(0.200): a alone is faster"),
        (Ratio(1.1, 0.01, 8), _BEST, "(1.100 +-0.010)"),
    ],
)
def test_beside_a_single_library(ratio: Ratio, status: Status, text: str) -> None:
    facts = _facts(singles={"a": Shown(ratio, 9.0), "b": _shown(1.5)}, made=Made())
    found, said = _said(facts)
    assert (found, said["speed"].status) == (status, status)
    assert f"the best single library now is a at 9 ms {text}" in said["speed"].text
    assert ("advice" in said) == (status is _SLOWER)


def test_all_that_are_faster_are_named() -> None:
    singles = {"b+reference": _shown(0.5), "a": _shown(0.7), "c": _shown(1.1)}
    text = _said(_facts(singles=singles))[1]["speed"].text
    assert text.endswith(": b+reference and a alone is faster")


def test_one_library_that_runs_it_all_is_compared_with_others() -> None:
    assert "the best other single library now is a" in _said(_facts(own=("mine",)))[1]["speed"].text
    assert "the best single library now is a" in _said(_facts(own=("a",)))[1]["speed"].text
    assert _said(_facts(singles={}))[1]["speed"].text == "speed: 10 ms; no single library ran beside it"


_FEW = {"sittings": 2}


@pytest.mark.parametrize(
    ("then", "now", "has_fallen"),
    [
        (_shown(1.2), _shown(1.06), True),
        (_shown(1.2), _shown(1.1, half=0.1), False),  # uncertain now
        (_shown(1.2, half=0.1), _shown(1.1), False),  # was then
        (_shown(1.2, half=0.001), _shown(1.16, half=0.001), False),  # as days differ
        (_shown(1.2), _shown(1.06, sittings=2), False),
        (_shown(1.2, sittings=2), _shown(1.06), False),
        (_shown(9.0, half=math.inf, sittings=1), _shown(2.0, half=math.inf, sittings=1), True),
        (_shown(1.2), _shown(1.5), False),
        # One of two rounds waited for a taken processor.
        (Shown(Ratio(500.0, math.inf, 1, (1.0, 1000.0)), 10.0), _shown(1.2), False),
        (_shown(1.2, sittings=1), Shown(Ratio(0.03, math.inf, 1, (0.001, 1.0)), 10.0), False),
    ],
)
def test_beside_what_it_was(then: Shown, now: Shown, has_fallen: bool) -> None:
    status, said = _said(_facts(made=_then(a=then), singles={"a": now}))
    assert status is (_SLOWER if has_fallen else _BEST)
    assert said["since then"].status is status


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"versions": (VersionChange("b", "library", "1.0", "2.0"),)}, "no version of theirs has changed"),
        ({}, "no version of theirs has changed since, so the machine may have"),
        ({"versions": (_a("2.0"),)}, "a went from 1.0 to 2.0 since, and is faster now"),
        ({"versions": (_a("2.0", "plugin"),)}, "a's plugin went from 1.0 to 2.0 since, and is faster now"),
        (
            {"versions": (_a("2.0"),), "singles": {"a": _shown(1.06, ms=12.0)}},
            "a went from 1.0 to 2.0 since",
        ),
        (
            {"versions": (VersionChange("mine", "library", "3", "4"),), "median_ms": 11.5},
            "mine, which runs a part of this, went from 3 to 4 since, and this is slower now",
        ),
        (
            {"versions": (VersionChange("mine", "library", "3", "4"),)},
            "mine, which runs a part of this, went from 3 to 4 since",
        ),
    ],
)
def test_whose_upgrade_it_was(changes: Mapping[str, Any], cause: str) -> None:
    facts = _facts(**{"made": _then(a=_shown(1.2)), "singles": {"a": _shown(1.06)}, **changes})
    status, said = _said(facts)
    assert status is _SLOWER
    text = said["since then"].text
    assert text.startswith(f"when it was made that was 1.200 +-0.010: {cause}")
    if not cause.startswith("no"):
        assert text.endswith(cause)


def test_another_library_is_the_best_now() -> None:
    made = _then(a=_shown(1.2), b=_shown(2.0))
    _, said = _said(_facts(made=made, singles={"a": _shown(1.21), "b": _shown(1.19)}))
    assert said["since then"].status is _BEST, "its advantage over the best is what it was"
    assert said["since then"].text == "when it was made that was 1.200 +-0.010, and a"
    _, said = _said(_facts(made=made, singles={"a": _shown(1.2), "b": _shown(1.05)}))
    assert said["since then"].status is _SLOWER


def test_other_versions_and_another_processor() -> None:
    status, said = _said(_facts(versions=(_a("2.0"),)))
    assert status is _STALE
    assert said["versions"].text == "measured with a (library) 1.0; here it is 2.0"
    assert said["advice"].text.endswith(": collage optimize m.onnx -o m.collage")

    figures_of_then = _then(a=_shown(9.0))
    status, said = _said(_facts(processor=("Abacus 9000", "Abacus 1"), made=figures_of_then))
    assert status is _STALE
    assert said["processor"].text == (
        "made on another processor (Abacus 9000; this is Abacus 1): figures of then do not compare"
    )
    assert "since then" not in said


@pytest.mark.parametrize(
    ("alone_ms", "least_ms", "is_better"),
    [
        ((12.3, 12.3), 11.0, True),
        ((12.3, 12.3), 12.1, False),  # by less than 2 %
        ((12.3, 10.8), 10.8, False),  # known then: it ran, and was slower
        ((12.3, 10.8), 10.5, True),
        ((10.0, 12.3), 12.2, False),  # a search that was not exact
        (None, 11.0, False),
    ],
)
def test_what_later_costs_predict(
    alone_ms: tuple[float, float] | None, least_ms: float, is_better: bool
) -> None:
    prediction = Prediction(12.3, least_ms, {"a": 5, "b": 2}, newer=14)
    status, said = _said(_facts(made=Made(alone_ms=alone_ms), prediction=prediction))
    assert status is (_STALE if is_better else _BEST)
    if is_better:
        assert said["costs"].text == (
            "costs imported or measured since (14 newer than the bundle, for this processor) predict another "
            f"placement to be faster: {least_ms:.3g} ms for a (5 nodes) and b (2 nodes) against 12.3 ms"
        )


def test_costs_that_are_no_newer() -> None:
    prediction = Prediction(12.3, 11.0, {"a": 5}, newer=0)
    text = _said(_facts(made=Made(alone_ms=(1.0, 1.0)), prediction=prediction))[1]["costs"].text
    assert text.startswith("costs that are known here predict another placement")


def test_slower_comes_before_stale() -> None:
    facts = _facts(singles={"a": _shown(0.5)}, versions=(_a("2.0"),))
    assert status_of(verdicts(facts)) is _SLOWER
    assert verdicts(facts)[-1].about == "advice"
    assert status_of([]) is _BEST


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"error": 0.0}, "the same as the reference's"),
        ({}, "the same as the reference's, within 3e-06 of the output's scale"),
        (
            {"error": 0.1, "amplifies": True},
            "off by 0.1 of the output's scale, no more than twice what rounding alone makes of this model",
        ),
        (
            {"error": 0.0, "is_random": True},
            "the same as the reference's; what hangs on random numbers, by range alone",
        ),
    ],
)
def test_what_answers_were_held_to_is_said(changes: dict[str, Any], said: str) -> None:
    answers, *_ = verdicts(_facts(**changes))
    assert answers.text == f"answers: {said}"
