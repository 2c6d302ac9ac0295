"""Contenders compared round by round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from collage_core.costs.ratio import TURNS, ratio_of
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
