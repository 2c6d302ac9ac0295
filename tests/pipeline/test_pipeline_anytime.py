"""An answer at any time: the first one at once, then better ones, each of which can be kept and used."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from chain_optimization import CHAIN, TARGET, Recorder, optimize_chain

from collage_core import Optimization, build, optimize
from collage_core.costs.record import CostRecord
from collage_core.errors import BackendError
from collage_core.formats import Array
from collage_core.measuring.comparison import Comparison, Contest
from collage_core.pipeline.effort import QUICK, THOROUGH
from collage_core.pipeline.found import Found
from collage_core.pipeline.optimization import Stage
from collage_core.pipeline.proof import CHOOSING, CONFIRMING
from collage_core.pipeline.singles import single
from collage_core.runtime import Bundle, read, save

if TYPE_CHECKING:
    from tests.pipeline.conftest import Answer, Parse

pytestmark = pytest.mark.ci


def _children() -> set[int]:
    """Of all threads of this process."""
    return {int(pid) for t in Path("/proc/self/task").glob("*/children") for pid in t.read_text().split()}


def _is_right(found: Optimization, model: onnx.ModelProto, answer: Answer, x: Array) -> bool:
    """As a bundle on disk, opened again."""
    (y,) = answer(model, {"x": x}).values()
    (told,) = build(found.graph, found.placement)({"x": x}).values()
    return np.allclose(told, y, rtol=1e-4, atol=1e-5)


def test_every_better_answer_can_be_kept_and_used(parse: Parse, answer: Answer, tmp_path: Path) -> None:
    model = parse(
        """(float[1,16,20,20] x) => (float y) {
            [conv] c = Conv<pads=[1,1,1,1]>(x, w)
            [relu] r = Relu(c)
            [next] d = Conv(r, v)
            [tanh] s = Tanh(d)
            [gate] y = Mul(d, s)
        }""",
        w=(16, 16, 3, 3),
        v=(16, 16, 1, 1),
    )
    told: list[Optimization] = []
    progress = Recorder()

    def keep(best: Optimization) -> None:
        save(Bundle(best.graph, best.placement), tmp_path / f"{len(told)}.collage")
        told.append(best)

    found = optimize(
        model,
        backends=["dnnl", "tvm", "onnxruntime"],
        target=TARGET,
        costs=tmp_path / "c.sqlite",
        progress=progress,
        on_best=keep,
    )
    first = told[0]
    assert first.stage is Stage.RUN
    assert first.placement.backends() == ("onnxruntime",), "it takes all of it, and needs no measuring"
    assert first.counts["measured"] == 0
    assert progress.phases.index("first answer") < progress.phases.index("searching")
    assert [best.chosen for best in told] == [label for label, _ in progress.bests]
    # A later comparison may find that what was told before is faster after all.
    assert all(a.placement.digest != b.placement.digest for a, b in pairwise(told))
    for better in told[1:]:
        comparison = better.comparisons[-1]
        names = {r for r in comparison.records if comparison.records[r].ok}
        assert "collage" in names, "what is best goes by this name"
        ratios = [comparison.ratio(n, "collage") for n in names - {"collage"}]
        assert all(r is None or r.value > 1.0 for r in ratios), "nothing in it was faster"
    x = np.random.default_rng(1).standard_normal((1, 16, 20, 20), dtype=np.float32)
    (y,) = answer(model, {"x": x}).values()
    for number in range(len(told)):
        bundle = read(tmp_path / f"{number}.collage")
        (kept,) = build(bundle.graph, bundle.placement)({"x": x}).values()
        np.testing.assert_allclose(kept, y, rtol=1e-3, atol=1e-4)
    assert found.stage is Stage.CONFIRMED
    assert found.counts["bounded_out"] > 0
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok


@pytest.mark.usefixtures("libraries")
def test_the_first_answer_is_told_and_nothing_slower_after_it(
    parse: Parse, answer: Answer, tmp_path: Path
) -> None:
    told: list[Optimization] = []
    progress = Recorder()
    optimize_chain(parse, tmp_path / "c.sqlite", rounds=2, progress=progress, on_best=told.append)
    assert told
    assert told[0].stage is Stage.RUN
    assert {s.backend for s in told[0].singles} == set(told[0].candidates.kinds)
    assert "not tried by itself so far" in {s.reason for s in told[0].singles}
    assert progress.compared[0] == "first answer"
    assert [best.chosen for best in told] == [label for label, _ in progress.bests]
    x = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
    assert all(_is_right(best, parse(CHAIN), answer, x) for best in told)


@pytest.mark.usefixtures("libraries")
def test_what_is_recalled_is_told_at_the_end_or_when_it_is_interrupted(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = optimize_chain(parse, tmp_path / "c.sqlite", rounds=2)
    told: list[Optimization] = []
    optimize_chain(parse, tmp_path / "c.sqlite", rounds=2, on_best=told.append)
    assert not told, "the answer follows at once"

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("collage_core.pipeline.run.prove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        optimize_chain(parse, tmp_path / "c.sqlite", rounds=2, on_best=told.append)
    (best,) = told
    assert best.stage is Stage.RUN
    assert found.stage is Stage.CONFIRMED


@pytest.mark.usefixtures("libraries")
def test_a_budget_of_nothing_still_gives_a_placement_that_runs(
    parse: Parse, answer: Answer, tmp_path: Path
) -> None:
    told: list[Optimization] = []
    progress = Recorder()
    found = optimize_chain(parse, tmp_path / "c.sqlite", budget_s=0.0, progress=progress, on_best=told.append)
    assert progress.limits == [0.0]
    assert found.is_cut_short
    assert told
    x = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
    assert _is_right(found, parse(CHAIN), answer, x)
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok
    assert found.counts["measured"] < found.counts["offered"]
    assert progress.compared == ["first answer"], "what cannot even open in time is not compared"
    assert found.stage is Stage.RUN
    assert found.chosen == told[-1].chosen
    backends = set(found.candidates.kinds)
    assert {s.backend for s in found.singles} == backends, "of those that did not run is told, too"


@pytest.mark.usefixtures("libraries")
def test_where_only_the_reference_has_run_something_else_is_tried_whatever_the_time(
    parse: Parse, answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reference_alone(steps: Any) -> None:
        known, runner = steps._known, steps._runner
        runner.at_once({known.fallback: single(known.fallback, known).placement})

    monkeypatch.setattr("collage_core.pipeline.run._Steps._answer_at_once", reference_alone)
    progress = Recorder()
    found = optimize_chain(parse, tmp_path / "c.sqlite", budget_s=0.0, progress=progress)
    assert progress.compared == ["first answer"] * 2
    assert [len(c.records) for c in found.comparisons] == [1, 2]
    assert found.counts["measured"] > 0, "it runs, and is right"
    assert found.stage is Stage.RUN
    assert _is_right(found, parse(CHAIN), answer, np.linspace(-1.0, 1.0, 8, dtype=np.float32))


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("status", "is_left"), [("timeout", True), ("failed", False), ("wrong", False)])
def test_where_there_is_no_time_to_open_anything_the_best_before_stays(
    status: str, is_left: bool, parse: Parse, answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Contest.run

    def none_in_the_end(contest: Contest, *args: Any) -> Comparison:
        comparison = whole(contest, *args)
        if contest.title not in (CHOOSING, CONFIRMING):
            return comparison
        records = {n: CostRecord(status, reason="no answer within 15 s") for n in comparison.records}
        return replace(comparison, records=records)

    monkeypatch.setattr(Contest, "run", none_in_the_end)
    progress = Recorder()
    if not is_left:
        with pytest.raises(BackendError, match="no placement runs as a whole"):
            optimize_chain(parse, tmp_path / "c.sqlite", rounds=2, progress=progress)
        return
    found = optimize_chain(parse, tmp_path / "c.sqlite", rounds=2, progress=progress)
    assert found.stage is Stage.RUN
    assert found.comparison is not None
    assert found.comparison.median_ms("collage") is not None, "its figures are those of when it ran"
    assert not found.is_cut_short
    assert not any(reason.startswith(f"{found.chosen}:") for reason in found.rejected)
    assert any(note.endswith("what ran before is the answer") for note in progress.notes)
    assert _is_right(found, parse(CHAIN), answer, np.linspace(-1.0, 1.0, 8, dtype=np.float32))


@pytest.mark.usefixtures("libraries")
def test_thorough_without_time_for_all_of_it_still_answers(
    parse: Parse, answer: Answer, tmp_path: Path
) -> None:
    found = optimize_chain(parse, tmp_path / "c.sqlite", budget_s=0.0, effort=THOROUGH)
    assert found.is_cut_short
    assert found.counts["measured"] < found.counts["offered"]
    assert _is_right(found, parse(CHAIN), answer, np.linspace(-1.0, 1.0, 8, dtype=np.float32))


def test_a_model_of_constants_alone_is_an_answer(parse: Parse, tmp_path: Path) -> None:
    model = parse("(float[2] x) => (float[2] c) { [c] c = Constant<value_floats=[1.0, 2.0]>() }")
    found = optimize(model, backends=["dnnl"], target=TARGET, costs=tmp_path / "c.sqlite", effort=QUICK)
    (c,) = build(found.graph, found.placement)({"x": np.zeros(2, np.float32)}).values()
    assert c.tolist() == [1.0, 2.0]


@pytest.mark.usefixtures("libraries")
def test_what_a_budget_has_cut_short_is_gone_on_with(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = optimize_chain(parse, tmp_path / "c.sqlite", budget_s=0.0)
    assert found.stage is Stage.RUN
    assert found.counts["measured"] == 0, "there is an answer"
    same = optimize_chain(parse, tmp_path / "c.sqlite", budget_s=0.0)
    assert not any(c.measured for c in same.comparisons), "it has no more time than before"
    assert same.placement.digest == found.placement.digest
    with monkeypatch.context() as slow:
        slow.setattr(Found, "to_open_s", lambda self, out: math.inf)
        measured = optimize_chain(parse, tmp_path / "c.sqlite", rounds=2)
    assert measured.is_cut_short
    again = optimize_chain(parse, tmp_path / "c.sqlite", rounds=2)
    assert not again.is_cut_short
    assert again.stage is Stage.CONFIRMED
    assert again.counts["measured"] == 0
    assert again.counts["known"] == measured.counts["measured"] > 0, "it goes on from there"


@pytest.mark.alone
@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("after", [1, 2])
def test_whatever_is_raised_where_the_best_is_kept_leaves_nothing_behind(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = _children()
    told: list[Optimization] = []
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)

    def interrupt(best: Optimization) -> None:
        told.append(best)
        if len(told) == after:
            raise KeyboardInterrupt

    try:
        optimize_chain(parse, tmp_path / "c.sqlite", rounds=2, on_best=interrupt)
    except KeyboardInterrupt:
        assert len(told) == after + 1, "what was not kept is told once more"
    else:
        assert len(told) < after, "nothing better was found than the first answer"
    assert _children() == before
    assert not list(temporary.iterdir())


@pytest.mark.usefixtures("libraries")
def test_nothing_is_told_of_what_is_not_run(parse: Parse, tmp_path: Path) -> None:
    told: list[Optimization] = []
    progress = Recorder()
    found = optimize_chain(parse, tmp_path / "c.sqlite", rounds=0, progress=progress, on_best=told.append)
    assert not told
    assert not progress.bests
    assert not progress.compared
    assert found.stage is Stage.SEARCHED
    assert found.placement == found.mix
