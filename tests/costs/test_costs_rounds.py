"""Alternating rounds: fair turns, stopped while idle, and faults that cost only themselves."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from collage_core.costs import Contender, measure_rounds
from collage_core.costs.rounds import Limits, Rounds, Turns, _hopeless, starting_order
from collage_core.costs.seats import Seat, _alike
from collage_core.costs.sittings import Sitting, Turn
from collage_core.errors import WorkerError
from collage_core.worker import Worker

pytestmark = [pytest.mark.ci, pytest.mark.alone]

runners = importlib.import_module("costs_odd_backend")

_AT_ONCE = Turns(1, 0.0, 1, 0.0)
"""One run, after one."""


def contender(name: str, log: Path | None = None, do: str = "", seconds: float = 0.0) -> Contender:
    return Contender(name, {"WHO": name}, runners.open_runner, (log, name, do, seconds))


def test_everybody_gets_the_same_turns_in_changing_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    names = ["a", "b", "c"]
    done: list[int] = []
    outcomes = measure_rounds(
        [contender(n, log) for n in names], Rounds(12), Turns(2, 0.0, 1, 0.0), on_round=done.append
    )
    assert list(outcomes) == names
    assert done == list(range(1, 13))
    runs = [line.split()[0] for line in log.read_text().splitlines()]
    assert set(Counter(runs).values()) == {2 + 12 * 3}
    assert all(o.ok and o.samples is not None and o.samples.runs == 24 for o in outcomes.values())
    assert all(o.outputs["y"].tolist() == [38] for o in outcomes.values())
    turns = runs[6:][::3]
    assert all(sorted(turns[k : k + 3]) == names for k in range(0, 36, 3))
    assert all(runs[6:][k : k + 3] == [runs[6:][k]] * 3 for k in range(0, 108, 3))
    firsts = Counter(turns[::3])
    assert set(firsts.values()) == {4}
    assert {tuple(turns[k : k + 3]) for k in range(0, 36, 3)} >= {("a", "b", "c"), ("c", "b", "a")}


def test_a_process_that_cannot_be_started_costs_only_its_contender(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(environment: Mapping[str, str], **options: Any) -> Worker:
        if environment["WHO"] == "unlucky":
            raise WorkerError("a worker process cannot be started: no memory")
        return Worker(environment, **options)

    monkeypatch.setattr("collage_core.costs.seats.Worker", start)
    outcomes = measure_rounds([contender("unlucky"), contender("lucky")], Rounds(4, 2))
    assert outcomes["unlucky"].reason == "a worker process cannot be started: no memory"
    assert outcomes["unlucky"].unavailable
    assert outcomes["lucky"].ok


@pytest.mark.parametrize("over_after", [0, 1, 2, 9])
def test_no_sitting_but_the_first_begins_when_time_is_over(over_after: int) -> None:
    asked_s: list[float] = []

    def has_time(seconds: float) -> bool:
        if seconds:  # for a sitting like those before
            asked_s.append(seconds)
        return len(asked_s) <= over_after

    def nobody(sittings: Mapping[str, Sequence[Sitting]]) -> set[str]:
        return set()

    both = [contender("a"), contender("b")]
    outcomes = measure_rounds(both, Rounds(8, 4), limits=Limits(has_time=has_time), go_on=nobody)
    expected = min(1 + over_after, 4)
    for outcome in outcomes.values():
        assert len(outcome.sittings) == expected
        assert outcome.samples is not None
        assert outcome.samples.runs >= 2 * expected


def test_a_sitting_begins_where_there_is_time_for_one_like_the_last() -> None:
    asked_s: list[float] = []

    def has_time(seconds: float) -> bool:
        if seconds:
            asked_s.append(seconds)
        return len(asked_s) <= 3

    def all_of_them(sittings: Mapping[str, Sequence[Sitting]]) -> Collection[str]:
        return sittings.keys()

    slow, fast = contender("slow", seconds=0.3), contender("fast", seconds=0.001)
    outcomes = measure_rounds(
        [slow, fast], Rounds(4, 2, hopeless=4.0), limits=Limits(has_time=has_time), go_on=all_of_them
    )
    assert [len(outcomes[name].sittings) for name in ("slow", "fast")] == [4, 4]
    assert [bool(s.turns) for s in outcomes["slow"].sittings] == [True, False, False, False]
    first_s, *others_s = asked_s
    assert len(others_s) == 3, "asked of those that go on, too"
    assert first_s > max(others_s), "with one contender a sitting takes less time"


def test_once_time_is_over_a_sitting_ends_with_its_round() -> None:
    sittings_begun = 0

    def has_time(seconds: float) -> bool:
        nonlocal sittings_begun
        sittings_begun += seconds > 0.0
        return seconds > 0.0 or sittings_begun == 0

    both = [contender("a"), contender("b")]
    for outcome in measure_rounds(both, Rounds(8, 2, 4), limits=Limits(has_time=has_time)).values():
        first, second = outcome.sittings
        assert len(first.turns) >= 4
        assert len(second.turns) == 1


def test_short_runs_fill_their_turns(tmp_path: Path) -> None:
    logs = {"short": tmp_path / "short", "long": tmp_path / "long"}
    seconds = {"short": 0.001, "long": 0.2}
    contenders = [contender(n, log, seconds=seconds[n]) for n, log in logs.items()]
    outcomes = measure_rounds(contenders, Rounds(2), Turns(3, 0.5, 1, 0.0))
    runs = {name: len(log.read_text().splitlines()) for name, log in logs.items()}
    assert runs == {"short": 2 + 2 * (1 + 16), "long": 2 + 2 * (1 + 3)}
    assert [o.samples.runs for o in outcomes.values() if o.samples] == [2 * 3] * 2


def test_a_turn_of_few_runs_counts_as_much_as_one_of_many() -> None:
    many, few = [1.0 + k / 100 for k in range(16)], [1000.0, 1002.0, 1001.0]
    assert _alike(many, 3) == pytest.approx([1.025, 1.075, 1.125])
    assert _alike(many, 1) == pytest.approx([1.075])
    assert _alike(few, 3) == _alike(few, 5) == few


def test_times_are_those_of_the_runs() -> None:
    outcomes = measure_rounds([contender("slow", seconds=0.02), contender("fast", seconds=0.002)], Rounds(5))
    slow, fast = outcomes["slow"].samples, outcomes["fast"].samples
    assert slow is not None
    assert fast is not None
    assert 20 <= min(slow.times_ms) < 30
    assert 2 <= min(fast.times_ms) < 10


def test_a_run_of_several_requests_is_shared_out_among_them() -> None:
    several = replace(contender("several", seconds=0.04), shares=4)
    outcome = measure_rounds([several], Rounds(5))["several"]
    assert outcome.samples is not None
    assert 10 <= min(outcome.samples.times_ms) < 20
    assert all(10 <= turn.ms < 30 for sitting in outcome.sittings for turn in sitting.turns)


def test_parts_are_means_without_the_longest_tenth() -> None:
    """Of 20 runs 10 take 1, 8 take 3, and two take much longer for what is not their own fault."""
    timed = replace(contender("timed"), parts=True)
    outcomes = measure_rounds([timed, contender("other")], Rounds(10), Turns(2, 0.0, 1, 0.0))
    assert outcomes["timed"].parts_ms == pytest.approx([2.0, 34.0 / 18.0])
    assert outcomes["other"].parts_ms == ()


def test_every_sitting_has_new_processes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    contenders = [contender("a", log, seconds=0.002), contender("b", log, do="raise")]
    outcomes = measure_rounds(contenders, Rounds(7, 3), Turns(2, 0.0, 1, 0.0))
    processes = Counter(line for line in log.read_text().splitlines() if line.startswith("a "))
    assert [*processes.values()] == [2 + 3 * n for n in (2, 2, 3)]
    found = outcomes["a"]
    assert found.samples is not None
    assert [len(sitting.turns) for sitting in found.sittings] == [2, 2, 3]
    assert min(t.ms for sitting in found.sittings for t in sitting.turns) > 2
    assert found.outputs["y"].tolist() == [11]
    assert outcomes["b"].reason is not None, "out in one sitting is out in all"


@pytest.mark.parametrize("first_order", [0, 3])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_everybody_is_the_first_to_start_equally_often(count: int, first_order: int) -> None:
    """Among the sittings as they come, too, which are every third."""
    names = "abcdef"[:count]
    orders = [starting_order(names, sitting, first_order) for sitting in range(6 * count)]
    as_it_comes = orders[1::3]
    others = [order for number, order in enumerate(orders) if number % 3 != 1]
    for kind in (as_it_comes, others):
        assert all(sorted(order) == list(names) for order in kind)
        for place in range(count):
            assert Counter(order[place] for order in kind) == dict.fromkeys(names, len(kind) // count)


def test_processes_start_in_the_order_of_the_sitting(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = Seat.start

    def seen(seat: Seat) -> None:
        started.append(seat.contender.name)
        start(seat)

    monkeypatch.setattr(Seat, "start", seen)
    contenders = [contender(n) for n in "abc"]
    measure_rounds(contenders, Rounds(3, 3, first_order=1), _AT_ONCE)
    assert "".join(started) == "cba" + "cba" + "bca"
    monkeypatch.setattr("random.randrange", lambda end: end - 1)
    measure_rounds(contenders, Rounds(1), _AT_ONCE)
    assert "".join(started[9:]) == "bac", "no list's first is always the first"


def test_a_sitting_goes_on_for_as_long_as_it_took_to_start() -> None:
    """Rounds of 2 x 2 ms and of 2 x 200 ms, beside the start of two processes."""
    done: list[int] = []

    def turns(seconds: float, most_rounds: int) -> list[int]:
        contenders = [contender(name, seconds=seconds) for name in ("a", "b")]
        outcomes = measure_rounds(contenders, Rounds(4, 2, most_rounds), _AT_ONCE, on_round=done.append)
        found = {name: [len(sitting.turns) for sitting in o.sittings] for name, o in outcomes.items()}
        assert found["a"] == found["b"]
        return found["a"]

    assert turns(0.001, 9) == [9, 9]
    assert turns(0.001, 1) == [2, 2], "those asked for are run in any case"
    assert all(2 <= n < 99 for n in turns(0.1, 99))
    assert done == [1, 2, 3, 4] * 3


def test_further_sittings_follow_for_those_who_are_to_go_on(tmp_path: Path) -> None:
    seen: list[dict[str, list[int]]] = []

    def go_on(sat: Mapping[str, Sequence[Sitting]]) -> set[str]:
        seen.append({name: [len(sitting.turns) for sitting in sittings] for name, sittings in sat.items()})
        return [{"a", "b"}, {"b", "c"}, set[str]()][len(seen) - 1]

    log = tmp_path / "log"
    done: list[int] = []
    contenders = [*(contender(name, log) for name in "abc"), contender("out", do="raise")]
    outcomes = measure_rounds(contenders, Rounds(4, 2), _AT_ONCE, go_on=go_on, on_round=done.append)
    assert seen == [
        {"a": [2, 2], "b": [2, 2], "c": [2, 2]},
        {"a": [2, 2, 2], "b": [2, 2, 2], "c": [2, 2, 0]},
        {"a": [2, 2, 2, 0], "b": [2, 2, 2, 2], "c": [2, 2, 0, 2]},
    ]
    assert done == [1, 2, 3, 4]
    for name, sittings in (("a", 3), ("b", 4), ("c", 3)):
        assert outcomes[name].outputs["y"].size == 1, "who has left has answered before"
        processes = {line for line in log.read_text().splitlines() if line.startswith(f"{name} ")}
        assert len(processes) == sittings
        samples = outcomes[name].samples
        assert samples is not None
        assert samples.runs == 4, "of the rounds that all had"


def test_what_is_hopelessly_behind_leaves_after_one_sitting(tmp_path: Path) -> None:
    log = tmp_path / "log"
    contenders = [contender("fast", log, seconds=0.002), contender("hopeless", log, seconds=0.04)]
    outcomes = measure_rounds(contenders, Rounds(6, 3, hopeless=4.0), _AT_ONCE)
    sat = {name: [len(s.turns) for s in o.sittings] for name, o in outcomes.items()}
    assert sat == {"fast": [2, 2, 2], "hopeless": [2, 0, 0]}
    assert outcomes["hopeless"].outputs["y"].size == 1, "it has answered before it left"
    processes = {line for line in log.read_text().splitlines() if line.startswith("hopeless ")}
    assert len(processes) == 1


def test_who_has_left_is_not_asked_about_and_comes_no_more(tmp_path: Path) -> None:
    """Whatever they are told by whom they ask, rounds come to an end."""
    contenders = [
        contender("fast", tmp_path / "log", seconds=0.002),
        contender("hopeless", tmp_path / "log", seconds=0.04),
    ]
    asked: list[set[str]] = []

    def go_on(sittings: Mapping[str, Sequence[Sitting]]) -> set[str]:
        asked.append(set(sittings))
        return {"hopeless"} if len(asked) > 1 else {"fast", "hopeless"}

    outcomes = measure_rounds(contenders, Rounds(2, 2, hopeless=4.0), _AT_ONCE, go_on=go_on)
    assert asked == [{"fast"}, {"fast"}]
    assert {n: sum(bool(s.turns) for s in o.sittings) for n, o in outcomes.items()} == {
        "fast": 3,
        "hopeless": 1,
    }


def test_hopeless_is_told_round_by_round_as_ratios_are() -> None:
    """Four times as long by the medians of both, less by the median of the quotients."""
    slow, fast = (cast(Seat, Seated(ms)) for ms in ([4.0, 3.9, 4.7], [1.0, 1.0, 1.2]))
    assert _hopeless([slow, fast], 4.0) == []
    assert _hopeless([slow, fast], 3.9) == [slow]


class Seated:
    """With turns, and no process."""

    is_in = True

    def __init__(self, times_ms: list[float]) -> None:
        self._sittings = (Sitting(tuple(map(Turn, times_ms))),)

    def sittings(self) -> tuple[Sitting, ...]:
        return self._sittings


def test_of_what_takes_long_a_turn_is_one_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    measure_rounds([contender("a", log, seconds=1.01)], Rounds(2), Turns(3, warmup_runs=2))
    assert len(log.read_text().splitlines()) == 1 + 2, "one to open, and none to warm up"


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("crash", "SIGSEGV"),
        ("raise", "lost the device"),
        ("hang", "no answer within 4 s"),
        ("raise at open", "cannot load"),
    ],
)
def test_a_fault_costs_its_contender_only(do: str, reason: str) -> None:
    outcomes = measure_rounds(
        [contender("bad", do=do), contender("good")], Rounds(6), Turns(seconds=0.0), Limits(turn_s=4.0)
    )
    bad, good = outcomes["bad"], outcomes["good"]
    assert not bad.ok
    assert bad.samples is None
    assert reason in (bad.reason or "")
    assert good.samples is not None
    assert good.samples.runs == 6
    assert good.reason is None


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_rounds([contender("a", log), contender("b", log)], Rounds(5), on_round=interrupt)
    pids = {line.split()[1] for line in log.read_text().splitlines()}
    assert len(pids) == 2
    assert not any(Path("/proc", pid).exists() for pid in pids)


def test_equal_names_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="differ"):
        measure_rounds([contender("a"), contender("a")], Rounds(1))
    assert measure_rounds([], Rounds(3)) == {}
