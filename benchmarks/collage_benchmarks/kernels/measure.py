"""One case in all libraries, in alternating rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from collage_benchmarks.kernels.batch import CALLS, NOTE
from collage_benchmarks.kernels.case import Case
from collage_benchmarks.kernels.contenders import COPIES, contender, copied_bytes, copy_contender
from collage_benchmarks.kernels.verdicts import BANDWIDTH_KINDS, Limits, bandwidth_miss, torch_miss
from collage_core.costs.fingerprint import cache_sizes_bytes
from collage_core.costs.rounds import Rounds, Turns, measure_rounds
from collage_core.costs.seats import Outcome

__all__ = ["Column", "Row", "measure_case", "misses"]

_RUNS_PER_ROUND = 3
_TORCH = ("torch", "compile")


@dataclass(frozen=True, slots=True)
class Column:
    """What a library takes for a case, per call: median and interquartile range over `runs` runs of `calls`
    calls each; or why it has no time.
    """

    median_us: float | None = None
    spread_us: float | None = None
    runs: int = 0
    calls: int = 0
    note: str = ""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One case: what is moved, what each library takes, and which limits are missed.

    copy_gb_s: the fastest copy's in the same rounds, where the case is to be compared with one.
    """

    case: str
    kind: str
    moved_bytes: int
    columns: Mapping[str, Column]
    copy_gb_s: float | None = None
    misses: tuple[str, ...] = ()

    def median_us(self, library: str) -> float | None:
        column = self.columns.get(library)
        return None if column is None else column.median_us

    def gb_s(self, library: str) -> float | None:
        median_us = self.median_us(library)
        return None if median_us is None else self.moved_bytes / median_us / 1e3

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "gb_s": self.gb_s("tvm")}


def measure_case(
    case: Case,
    libraries: Sequence[str],
    missing: Mapping[str, str],
    *,
    threads: int,
    rounds: int,
    limits: Limits,
    on_wait: Callable[[str], object] | None = None,
) -> Row:
    """Run one case in `libraries`; `missing` says why some of them cannot run at all."""
    arrays = case.arrays()
    expected = case.expected(arrays)
    largest_bytes = max(a.nbytes for a in [*arrays.values(), *expected.values()])
    streams = case.kind in BANDWIDTH_KINDS and largest_bytes > cache_sizes_bytes()[-1]
    moved_bytes = case.bytes(expected)
    del arrays, expected
    present = [name for name in libraries if name not in missing]
    copies = [c for c in COPIES if streams and "tvm" in present and c.removeprefix("copy ") in present]
    outcomes = measure_rounds(
        [contender(name, case, threads) for name in present] + [copy_contender(c, threads) for c in copies],
        Rounds(rounds),
        Turns(_RUNS_PER_ROUND),
        on_wait=on_wait,
    )
    columns = {name: Column(reason=reason) for name, reason in missing.items() if name in libraries}
    columns |= {name: _column(outcome) for name, outcome in outcomes.items()}
    copied_us = [us for c in copies if (us := columns.pop(c).median_us) is not None]
    copy_gb_s = copied_bytes() / min(copied_us) / 1e3 if copied_us else None
    row = Row(case.name, case.kind, moved_bytes, columns, copy_gb_s)
    return replace(row, misses=misses(row, streams, limits))


def misses(row: Row, streams: bool, limits: Limits) -> tuple[str, ...]:
    """Which limits tvm misses, of those that the columns there are allow to be judged.

    streams: whether the case is to run at a copy's pace.
    """
    if "tvm" not in row.columns:
        return ()
    ours_us, ours_gb_s = row.median_us("tvm"), row.gb_s("tvm")
    if ours_us is None or ours_gb_s is None:
        return (row.columns["tvm"].reason or "not run",)
    found: list[str | None] = []
    if streams:
        if row.copy_gb_s is None:
            found.append("no copy to compare with")
        else:
            found.append(bandwidth_miss(ours_gb_s, row.copy_gb_s, limits))
    asked = [name for name in _TORCH if name in row.columns]
    torch_us = {name: us for name in asked if (us := row.median_us(name)) is not None}
    if torch_us:
        found.append(torch_miss(ours_us, torch_us, limits))
    found += [f"{name}: {row.columns[name].reason}" for name in asked if name not in torch_us]
    return tuple(miss for miss in found if miss is not None)


def _column(outcome: Outcome) -> Column:
    if outcome.samples is None:
        reason = outcome.reason or "not run"
        return Column(reason=reason.partition("CollageError: ")[2] or reason)  # what was raised on purpose
    calls, samples = int(outcome.outputs[CALLS]), outcome.samples
    per_call = 1e3 / calls
    return Column(
        samples.median_ms * per_call,
        samples.spread_ms * per_call,
        samples.runs,
        calls,
        str(outcome.outputs[NOTE]),
    )
