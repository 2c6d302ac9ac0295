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
    assert ratio.count == 40
    assert ratio.median == pytest.approx(1.02, abs=0.005)
    assert ratio.uncertainty < 0.005
    back = ratio_of(fast, slow)
    assert back is not None
    assert back.is_below_one
    assert not ratio.is_below_one


def test_noise_of_their_own_is_uncertain() -> None:
    ratio = ratio_of(_record(_turns_ms(0.99, 0.1, 1)), _record(_turns_ms(1.0, 0.1, 2)))
    assert ratio is not None
    assert ratio.uncertainty > 0.02
    assert not ratio.is_below_one


def test_how_processes_differ_is_uncertain_however_many_rounds_they_take() -> None:
    """Each of five processes is up to two percent faster or slower than the one before."""
    processes = [1.0, 1.02, 0.98, 1.01, 0.99]
    turns = [[p * t for t in _turns_ms(1.0, 0.001, i, 100)] for i, p in enumerate(processes)]
    others = [_turns_ms(1.0, 0.001, 10 + i, 100) for i in range(5)]
    ran = [CostRecord("ok", 1.0, 0.1, 500, details={TURNS: sittings}) for sittings in (turns, others)]
    ratio = ratio_of(*ran)
    assert ratio is not None
    assert ratio.count == 5
    assert ratio.median == pytest.approx(1.0, abs=0.001)
    assert ratio.uncertainty == pytest.approx(1.57 * 0.02 / 5**0.5, rel=0.1)


def test_what_did_not_run_has_no_ratio() -> None:
    ran, failed = _record([1.0, 2.0]), CostRecord("crashed", reason="it died")
    assert ratio_of(ran, failed) is None
    assert ratio_of(failed, ran) is None
    comparison = Comparison({COLLAGE: ran, "crashed": failed}, measured=True)
    assert comparison.ratio(COLLAGE, "crashed") is None
    assert comparison.ratio(COLLAGE, "absent") is None
