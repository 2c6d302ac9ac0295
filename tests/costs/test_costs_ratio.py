"""Contenders compared round by round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from simulated_sittings import details_of_ms
from simulated_sittings import sittings_of_ms as sat

from collage_core.costs.processors import Look
from collage_core.costs.ratio import (
    ENOUGH_SITTINGS,
    Ratio,
    ratio_as_it_came,
    ratio_of,
    ratio_text,
    ratios_between,
    student_t,
    unsettled,
)
from collage_core.costs.record import CostRecord
from collage_core.costs.sittings import Sitting, Turn, sittings_from_json, sittings_to_json
from collage_core.measuring.comparison import Comparison
from collage_core.pipeline.proof import COLLAGE


def _ratio(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Ratio:
    ratio = ratio_of(sat(ones), sat(others))
    assert ratio is not None
    return ratio


def _turns_ms(factor: float, noise: float, seed: int, rounds: int) -> list[float]:
    """Of something that takes `factor` ms on a machine that becomes half as fast from round to round."""
    random = np.random.default_rng(seed)
    drift = np.linspace(1.0, 2.0, rounds)
    return [float(t) for t in factor * drift * random.normal(1.0, noise, rounds)]


def test_drift_that_both_share_is_not_uncertain() -> None:
    slow = [_turns_ms(1.02, 0.005, seed, 5) for seed in range(8)]
    fast = [_turns_ms(1.0, 0.005, seed, 5) for seed in range(8, 16)]
    ratio = _ratio(slow, fast)
    assert ratio.value == pytest.approx(1.02, abs=0.006)
    assert ratio.half_interval < 0.01
    assert ratio.is_above_one
    assert not ratio.is_below_one
    back = _ratio(fast, slow)
    assert back.is_below_one
    assert back.value == pytest.approx(1 / ratio.value)


def test_how_processes_differ_is_uncertain_and_nothing_else_is() -> None:
    """The rounds of one process say nothing of another's."""
    random = np.random.default_rng(1)
    processes = random.normal(1.0, 0.05, 8)
    ratio = _ratio([[p] * 25 for p in processes], [[1.0] * 25] * 8)
    logs = np.log(processes)
    half = student_t(7) * logs.std(ddof=1) / math.sqrt(8)
    assert ratio.value == pytest.approx(math.exp(logs.mean()))
    assert ratio.value + ratio.half_interval == pytest.approx(math.exp(logs.mean() + half))
    assert _ratio([[0.97] * 25] * 8, [[1.0] * 25] * 8).half_interval == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("freedom", [*range(1, 12), 20, 40])
def test_student_t(freedom: int) -> None:
    """The share of samples, of one value more, that are further from their mean than the quantile says."""
    random = np.random.default_rng(freedom)
    values = random.normal(size=(40_000, freedom + 1))
    far = np.abs(values.mean(1)) * math.sqrt(freedom + 1) / values.std(1, ddof=1) > student_t(freedom)
    assert far.mean() == pytest.approx(0.05, abs=0.004)


@pytest.mark.parametrize("sittings", [3, 8, 12])
@pytest.mark.parametrize("differ", [0.007, 0.05])
def test_intervals_hold_what_they_promise(sittings: int, differ: float) -> None:
    """Of contenders that take the same, on a noisy machine."""
    random = np.random.default_rng(sittings)

    def record() -> list[list[float]]:
        processes = random.normal(1.0, differ, sittings)
        return [random.normal(p, 0.01, 5).tolist() for p in processes]

    ratios = [_ratio(record(), record()) for _ in range(1500)]
    right = [abs(math.log(r.value)) <= math.log1p(r.half_interval / r.value) for r in ratios]
    assert np.mean(right) == pytest.approx(0.95, abs=0.02)


def test_of_few_sittings_only_much_is_told() -> None:
    random = np.random.default_rng(0)

    def ratio(value: float, sittings: int) -> Ratio:
        return _ratio([[value * random.normal(1.0, 0.01)] for _ in range(sittings)], [[1.0]] * sittings)

    for sittings in (1, 2, 3, ENOUGH_SITTINGS - 1):
        assert not ratio(0.985, sittings).is_below_one
    assert all(ratio(0.9, ENOUGH_SITTINGS).is_below_one for _ in range(20))
    assert sum(ratio(0.7, 3).is_below_one for _ in range(100)) > 90
    assert not any(ratio(0.7, 2).is_below_one for _ in range(20)), (
        "two sittings say nothing of how they differ"
    )
    assert ratio(0.2, 1).is_below_one, "hopelessly behind"
    assert not ratio(0.3, 1).is_told
    assert math.isinf(ratio(0.3, 1).half_interval)


def test_what_waited_for_a_processor_now_and_then_is_not_hopeless() -> None:
    """As threads do that find a processor taken: a thousand times as long, in one of two rounds."""
    waited = _ratio([[1.0, 1000.0]], [[1.0, 1.0]])
    assert not waited.is_told
    assert not waited.is_above_one
    assert unsettled({"waited": sat([[1.0, 1000.0]]), "other": sat([[1.0, 1.0]])}) == {"waited", "other"}
    back = _ratio([[1.0, 1.0]], [[1.0, 1000.0]])
    assert not back.is_below_one
    assert back.inverse.rounds == pytest.approx(waited.rounds)
    assert _ratio([[4.5, 3.6]], [[1.0, 1.0]]).is_above_one
    assert _ratio([[1.0, 1.0]], [[4.5, 3.6]]).is_below_one


def test_what_is_far_apart_or_known_well_is_settled() -> None:
    def turns(factor: float, sittings: int, seed: int) -> tuple[Sitting, ...]:
        random = np.random.default_rng(seed)
        return sat([[factor * random.normal(1.0, 0.002)] * 2 for _ in range(sittings)])

    fast, close, slow, far = (turns(f, 3, seed) for seed, f in enumerate((1.0, 1.005, 1.1, 9.0)))
    assert unsettled({"fast": fast, "slow": slow}) == {"fast", "slow"}, (
        "two remain until they have sat enough"
    )
    assert unsettled({"fast": fast, "slow": slow, "close": close}) == {"fast", "close"}
    assert not unsettled({"fast": fast, "far": far})
    rest = (Sitting(),) * 5
    enough = {"fast": turns(1.0, 8, 9), "close": turns(1.005, 8, 8)}
    assert not unsettled({**enough, "slow": (*slow, *rest)})
    assert unsettled({"one": turns(1.0, 3, 7)}) == set()
    assert unsettled({}) == set()


def test_who_took_no_part_in_a_sitting_is_compared_by_the_others() -> None:
    one, other = [[1.0, 1.0], [5.0], [2.0, 2.0]], [[2.0, 2.0], [], [3.0, 3.0]]
    ratio = _ratio(one, other)
    assert ratio.value == pytest.approx(math.sqrt(1 / 2 * 2 / 3))
    assert ratio.sittings == 2


def test_a_single_sitting_tells_nothing_of_what_is_uncertain() -> None:
    ratio = _ratio([[0.5, 0.5, 0.5]], [[1.0, 1.0, 1.0]])
    assert ratio.value == 0.5
    assert not ratio.is_below_one
    assert ratio_of((), ()) is None


@pytest.mark.parametrize(
    ("half_interval", "text"), [(0.02, "1.500 +-0.020"), (1.6, "1.500"), (math.inf, "1.500"), (None, "1.500")]
)
def test_an_interval_that_tells_nothing_is_not_shown(half_interval: float | None, text: str) -> None:
    assert ratio_text(1.5, half_interval) == text


def test_turns_that_found_the_processors_moved_count_as_they_came_only() -> None:
    def sitting(moved_ms: float, as_it_comes: bool) -> Sitting:
        moved = Turn(moved_ms, moved=True, taken_again=not as_it_comes)
        return Sitting((Turn(1.0), moved, Turn(1.0)), as_it_comes)

    hit = (sitting(2.7, False), sitting(2.7, True))
    unhurt = (sitting(1.0, False), sitting(1.0, True))
    assert [len(s.kept) for s in hit] == [2, 3]
    steady, came = ratio_of(hit, unhurt), ratio_as_it_came(hit, unhurt)
    assert steady is not None
    assert steady.value == pytest.approx(1.0)
    assert steady.sittings == 2
    assert came is not None
    assert came.value == pytest.approx(4.7 / 3)
    assert came.sittings == 1


def test_a_last_try_counts_though_the_processors_had_been_moved() -> None:
    moved = (Sitting((Turn(2.0, moved=True),)),)
    ratio = ratio_of(moved, sat([[1.0]]))
    assert ratio is not None
    assert ratio.value == 2.0


def test_every_turn_is_kept_on_disk() -> None:
    turns = (
        Turn(1.5, Look(101.25, 1.0), Look(310.0, 1.7), 0.25, moved=True, taken_again=True),
        Turn(1.0, None, None),
    )
    sittings = (Sitting(turns), Sitting((), as_it_comes=True))
    again = sittings_from_json(sittings_to_json(sittings))
    assert again == (
        Sitting((Turn(1.5, Look(101.2, 1.0), Look(310.0, 1.7), 0.25, True, True), Turn(1.0))),
        Sitting((), True),
    )


def test_what_did_not_run_has_no_ratio() -> None:
    ran = CostRecord("ok", 1.0, 0.1, 2, details=details_of_ms([[1.0, 2.0]]))
    comparison = Comparison({COLLAGE: ran, "crashed": CostRecord("crashed", reason="it died")}, measured=True)
    assert comparison.ratio(COLLAGE, "crashed") is None
    assert comparison.ratio("crashed", COLLAGE) is None
    assert comparison.ratio_as_it_came(COLLAGE, "absent") is None
    assert ratios_between({"a": sat([[1.0]]), "out": ()})["a"] == {}
