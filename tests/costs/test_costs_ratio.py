"""Contenders compared round by round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest

from collage_core.costs.ratio import TURNS, ratio_of, ratio_of_turns, unsettled
from collage_core.costs.record import CostRecord
from collage_core.pipeline.comparison import Comparison
from collage_core.pipeline.proof import COLLAGE


def _record(turns_ms: Sequence[float]) -> CostRecord:
    spread_ms = float(np.subtract(*np.percentile(turns_ms, [75, 25])))
    return CostRecord(
        "ok", float(np.median(turns_ms)), spread_ms, len(turns_ms), details={TURNS: [[*turns_ms]]}
    )


def _sat(sittings_ms: list[list[float]]) -> CostRecord:
    return CostRecord("ok", 1.0, 0.1, 1, details={TURNS: sittings_ms})


def _turns_ms(factor: float, noise: float, seed: int, rounds: int = 40) -> list[float]:
    """Of something that takes `factor` ms on a machine that becomes half as fast from round to round."""
    random = np.random.default_rng(seed)
    drift = np.linspace(1.0, 2.0, rounds)
    return [float(t) for t in factor * drift * random.normal(1.0, noise, rounds)]


def test_drift_that_both_share_is_not_uncertain() -> None:
    slow, fast = _record(_turns_ms(1.02, 0.005, 1)), _record(_turns_ms(1.0, 0.005, 2))
    assert slow.uncertainty_ms + fast.uncertainty_ms > 0.1  # the medians alone tell nothing
    ratio = ratio_of(slow, fast)
    assert ratio is not None
    assert ratio.median == pytest.approx(1.02, abs=0.005)
    assert ratio.uncertainty == pytest.approx(0.02, rel=0.1), "how processes differ, no more"
    back = ratio_of(fast, slow)
    assert back is not None
    assert back.is_below_one
    assert not ratio.is_below_one


def test_noise_of_their_own_is_uncertain() -> None:
    ratio = ratio_of(_record(_turns_ms(0.99, 0.1, 1)), _record(_turns_ms(1.0, 0.1, 2)))
    assert ratio is not None
    assert ratio.uncertainty > 0.02
    assert not ratio.is_below_one


@pytest.mark.parametrize(
    "rounds",
    [[10], [5] * 2, [5] * 3, [25] * 3, [25, 5, 5], [5] * 6, [5] * 8, [9, 25, 5, 13] * 2, [5] * 9, [5] * 12],
)
def test_intervals_hold_what_they_promise(rounds: list[int]) -> None:
    """Of contenders that take the same, in processes that differ by some 2 %, on a noisy machine."""
    random = np.random.default_rng(len(rounds))

    def record() -> CostRecord:
        processes = random.normal(1.0, 0.007, len(rounds))
        return _sat([random.normal(p, 0.01, n).tolist() for p, n in zip(processes, rounds, strict=True)])

    ratios = [ratio_of(record(), record()) for _ in range(2000)]
    right = [r is not None and abs(r.median - 1.0) <= r.uncertainty for r in ratios]
    assert np.mean(right) > 0.89
    claims = [r is not None and r.is_below_one for r in ratios]
    assert np.mean(claims) < 0.065
    wide = [r.uncertainty for r in ratios if r is not None]
    assert np.median(wide) < 0.03


@pytest.mark.parametrize("noise", [0.01, 0.04, 0.1])
def test_going_on_until_it_is_settled_finds_no_differences_where_there_are_none(noise: float) -> None:
    """Of all pairs of three contenders, one of which is the fastest by chance."""
    random = np.random.default_rng(int(noise * 100))
    claims, sittings = [], []
    for _ in range(400):
        turns: dict[str, list[list[float]]] = {name: [] for name in "abc"}
        playing = set(turns)
        while len(turns["a"]) < 3 or (len(turns["a"]) < 30 and (playing := unsettled(turns))):
            for name, mine in turns.items():
                plays = random.normal(random.normal(1.0, 0.007), noise, 12).tolist()
                mine.append(plays if name in playing else [])
        claims += [ratio_of_turns(turns[n], turns[o]).is_below_one for n, o in permutations("abc", 2)]
        sittings.append(len(turns["a"]))
    assert np.mean(claims) < 0.06, "of all pairs, in either direction; 0.025 are expected"
    assert np.median(sittings) > 3, "otherwise nothing has gone on"


def test_what_is_far_apart_or_known_well_is_settled() -> None:
    def turns(factor: float, noise: float, sittings: int) -> list[list[float]]:
        return [_turns_ms(factor, noise, seed, 12) for seed in range(sittings)]

    fast, close, slow = (turns(factor, 0.002, 3) for factor in (1.0, 1.005, 1.1))
    assert not unsettled({"fast": fast, "slow": slow})
    assert unsettled({"fast": fast, "slow": slow, "close": close}) == {"fast", "close"}
    rested = {"fast": [*fast, *turns(1.0, 0.002, 6)], "close": [*close, *turns(1.005, 0.002, 6)]}
    assert not unsettled({**rested, "slow": [*slow, *[[]] * 6]})
    assert not unsettled({"alone": turns(1.0, 0.1, 3)})
    assert not unsettled({})


def test_who_took_no_part_in_a_sitting_is_compared_by_the_others() -> None:
    one, other = [[1.0, 1.0], [5.0], [2.0, 2.0]], [[2.0, 2.0], [], [3.0, 3.0]]
    assert ratio_of_turns(one, other).median == pytest.approx((1 / 2 + 2 / 3) / 2)
    noisy = [[1.05, 0.9, 1.05, 0.9, 1.0], [9.0, 8.0, 9.0, 8.0, 9.0]]
    faster_later = {"a": [[1.0] * 5, [9.0] * 5], "b": [[1.1] * 5, []], "c": noisy}
    assert unsettled(faster_later) == {"a", "c"}, "what was slow for all is held against nobody"


def test_a_single_round_tells_nothing_of_what_is_uncertain() -> None:
    ratio = ratio_of(_record([0.5]), _record([1.0]))
    assert ratio is not None
    assert ratio.median == 0.5
    assert not ratio.is_below_one


def test_what_did_not_run_has_no_ratio() -> None:
    ran, failed = _record([1.0, 2.0]), CostRecord("crashed", reason="it died")
    assert ratio_of(ran, failed) is None
    assert ratio_of(failed, ran) is None
    comparison = Comparison({COLLAGE: ran, "crashed": failed}, measured=True)
    assert comparison.ratio(COLLAGE, "crashed") is None
    assert comparison.ratio(COLLAGE, "absent") is None
