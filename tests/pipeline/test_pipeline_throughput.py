"""The most requests a second, of libraries whose kernels sleep: how long they take is known."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from chain_optimization import BACKENDS, CHAIN, Recorder

from collage_core import Constraints, Context, Optimization, Session, Target, build, optimize
from collage_core.errors import BackendError, CollageError
from collage_core.inference.profiles import Profile
from collage_core.pipeline import throughput
from collage_core.pipeline.effort import QUICK
from collage_core.pipeline.optimization import Stage
from collage_core.report.checked import made_from
from collage_core.report.summary import optimization_json
from collage_core.report.text import explain_text, optimization_text
from collage_core.runtime import Bundle, read, save
from collage_core.serving import Serving
from collage_core.steering import read_placement

if TYPE_CHECKING:
    from tests.pipeline.conftest import Answer, Parse

_X = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
_TWO = Target("cpu", 2)


def _optimize(parse: Parse, costs: Path, **options: Any) -> Optimization:
    told = {"target": _TWO, "rounds": 2, "concurrency": 2, **options}
    # Which takes no time at all, on however many threads.
    without = Constraints(excluded=(("reference", None),))
    return optimize(parse(CHAIN), backends=BACKENDS, costs=costs, constraints=without, **told)


@pytest.fixture
def slow(libraries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries, so slow that nothing else matters."""
    monkeypatch.setenv("PIPELINE_PACE", "2")


@pytest.mark.ci
@pytest.mark.alone
@pytest.mark.usefixtures("slow")
def test_two_sessions_answer_twice_as_much_where_threads_gain_nothing(
    parse: Parse, answer: Answer, tmp_path: Path
) -> None:
    progress = Recorder()
    told: list[Optimization] = []
    found = _optimize(parse, tmp_path / "c.sqlite", progress=progress, on_best=told.append)
    assert found.serving == Serving(2, 2)
    assert found.placement.target == Target("cpu", 1)
    assert found.stage is Stage.CONFIRMED
    confirming = found.comparison
    assert confirming is not None
    way = ", 1 session of 2 threads"
    assert {"collage"} < confirming.records.keys()
    (other, *_) = [name for name in confirming.records if name.endswith(way)]
    ratio = confirming.ratio(other, "collage")
    assert ratio is not None
    assert ratio.value == pytest.approx(2.0, rel=0.3)
    took_ms = confirming.median_ms("collage")
    assert took_ms == pytest.approx((found.placement.predicted_ms or 0.0) / 2, rel=0.5), "it is shared"
    # Both ways have learnt what their kernels take in place, beside the other sessions.
    assert progress.phases.count("searching") == 2
    assert found.op_level.history["turns"]
    assert told, "there is an answer before both have been tried"
    assert {best.serving for best in told} == {found.serving}
    (y,) = answer(parse(CHAIN), {"x": _X}).values()
    (ours,) = build(found.graph, found.placement)({"x": _X}).values()
    np.testing.assert_allclose(ours, y, rtol=1e-5)

    again = _optimize(parse, tmp_path / "c.sqlite")
    assert again.is_recalled
    assert again.placement == found.placement
    assert again.serving == found.serving

    report = optimization_json(found, "chain.onnx")
    assert report["serving"] == {"concurrency": 2, "sessions": 2}
    text = optimization_text({**report, "output": None})
    assert text.startswith("chain.onnx on cpu, 2 sessions of 1 thread, 2 requests at a time\n")
    assert f" ms a request, {1000 / (took_ms or 0.0):.4g} a second, " in text
    assert way in text
    assert " of a session for a request, measured " in explain_text(report)
    # What a later look at the bundle compares it with is served as it is.
    assert all(p.target == found.placement.target for p in found.rivals.values())
    took_part = made_from(report, {}).took_part
    assert took_part is not None
    assert {*BACKENDS} <= {*took_part} <= {*BACKENDS, "reference"}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.usefixtures("slow")
def test_one_session_has_all_threads_where_that_answers_more(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_ALONE", "6")
    found = _optimize(parse, tmp_path / "c.sqlite", effort=QUICK)
    assert found.serving == Serving(2, 1)
    assert found.placement.target == _TWO
    assert found.comparison is not None
    others = [(c, n) for c in found.comparisons for n in c.records if n.endswith(", 2 sessions of 1 thread")]
    ratios = [c.ratio(name, "collage") for c, name in others]
    assert ratios
    assert all(r is not None and r.value == pytest.approx(3.0, rel=0.4) for r in ratios)


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_one_at_a_time_is_one_session_of_all_threads(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse, tmp_path / "c.sqlite", concurrency=1, effort=QUICK)
    assert found.serving == Serving(1, 1)
    assert found.placement.target == _TWO
    assert not any("session" in name for c in found.comparisons for name in c.records)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "without rounds nothing is run, and throughput is told by running"),
        ({"max_error": 0.1}, "the error is limited for one request at a time only"),
        ({"concurrency": 0}, "concurrency must be 1 to 1024, not 0"),
    ],
)
def test_what_goes_with_latency_alone_is_refused(
    parse: Parse, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CollageError, match=message):
        _optimize(parse, tmp_path / "c.sqlite", **options)


@pytest.mark.usefixtures("libraries")
def test_a_placement_file_says_for_how_many_threads_it_is(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\npins: [{nodes: a, backend: operators}]\n")
    with pytest.raises(CollageError, match="says on how many threads; throughput is what decides that"):
        _optimize(parse, tmp_path / "c.sqlite", placement=read_placement(file))


@pytest.mark.ci
@pytest.mark.usefixtures("libraries")
def test_a_way_that_fails_leaves_the_others(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out is told; what is left is what there is."""
    run = throughput.run  # type: ignore[attr-defined]  # it is a step of it

    def failing(aim: Any, *rest: Any) -> Optimization:
        if aim.machine.target.threads == 1:
            raise BackendError("no placement runs as a whole")
        return run(aim, *rest)

    monkeypatch.setattr(throughput, "run", failing)
    notes: list[str] = []
    progress = Recorder()
    monkeypatch.setattr(progress, "note", notes.append)
    found = _optimize(parse, tmp_path / "c.sqlite", effort=QUICK, progress=progress)
    assert found.serving == Serving(2, 1)
    assert "not with 2 sessions of 1 thread: no placement runs as a whole" in notes


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_session_runs_as_many_calls_as_there_are_processors_for(
    parse: Parse, tmp_path: Path, threads: int
) -> None:
    costs, target = tmp_path / "c.sqlite", Target("cpu", threads)
    found = optimize(parse(CHAIN), backends=["reference"], target=target, costs=costs, rounds=0)
    plain, served = tmp_path / "plain.collage", tmp_path / "served.collage"
    save(Bundle(found.graph, found.placement), plain)
    save(Bundle(found.graph, found.placement, serving=Serving(8, 1)), served)
    assert read(plain).serving is None
    assert read(served).serving == Serving(8, 1)
    assert _at_once(plain) == min(4, max(1, Target.default().threads // threads))
    assert _at_once(served) == 1, "no more than it was made for"


def _at_once(path: Path) -> int:
    """How many of four calls run beside each other, when none ends before all that may have begun."""
    lock, most, running = threading.Condition(), 0, 0
    with Session(path) as session:
        profile = session._profiles.of({"x": _X})
        assert isinstance(profile, Profile)
        lend = profile.contexts.lend

        def work(context: Context) -> None:
            nonlocal most, running
            with lock:
                running += 1
                most = max(most, running)
                lock.notify_all()
                lock.wait_for(lambda: running >= 4, timeout=0.5)
            context.run({"x": _X})
            with lock:
                running -= 1

        threads = [threading.Thread(target=lend, args=(work,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return most
