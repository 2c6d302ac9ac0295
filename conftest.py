"""What all tests share: a library that they compare with reports nothing to its vendor, nothing waits for
processors, a test that is marked `alone` runs beside no other, and what each folder of tests takes is told.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["COLLAGE_SETTLING_LIMIT_S"] = "0"  # beside other tests no processor is ever free for a look

# What takes how long is not what examples are about. The same ones every time: new ones are for the nightly
# session, where a rare one that fails is in nobody's way.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("exploring", deadline=None)
settings.load_profile("repeatable")

_TREE = Path(__file__).parent
MARKED_TIERS = ("ci", "slow")
"""Markers of the tests that `nox -s tests` leaves out; docs/adr/0023. A test has at most one."""
SECONDS = _TREE / "tests" / "seconds.json"
PROCESSES = 2
"""Of the table of seconds; a test that runs alone keeps all of them."""
_ALONE = "alone"
_LIST = pytest.StashKey[Path]()
_BEGUN_S = pytest.StashKey[float]()
_TOOK, _TIER = "seconds", "tier"
ELAPSED = "elapsed"
"""Among the table's tiers: what each took by the clock."""
_SLOWEST = 4
"""So many times as long a tier may take: machines here differ by two, beside other work or not."""
_NOISE_S = 5
"""No folder is told to be slow for less."""

_MOST_PROCESSES = 4
"""Many tests start processes, which have threads of their own."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput[_ALONE] = str(_list_of_alone(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """With `--dist loadfile`: what runs alone is scheduled apart from its file."""
    from xdist.scheduler import LoadFileScheduling

    class Apart(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        @functools.cached_property
        def _alone(self) -> frozenset[str]:
            return frozenset(_list_of_alone(config).read_text().splitlines())

        def _split_scope(self, nodeid: str) -> str:
            return _ALONE if nodeid in self._alone else str(super()._split_scope(nodeid))

    return Apart(config, log) if config.getoption("dist") == "loadfile" else None


def _list_of_alone(config: pytest.Config) -> Path:
    """Where the processes that collect tests tell the one that schedules them which of them run alone."""
    if _LIST not in config.stash:
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        config.stash[_LIST] = Path(folder.name, _ALONE)
    return config.stash[_LIST]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In several processes, what runs alone comes last: the others wait for it once."""
    for item in items:
        if sum(item.get_closest_marker(tier) is not None for tier in MARKED_TIERS) > 1:
            raise pytest.UsageError(f"{item.nodeid} is of several tiers: {', '.join(MARKED_TIERS)}")
    if hasattr(config, "workerinput"):
        items.sort(key=_is_alone)
        told = Path(config.workerinput[_ALONE])
        told.write_text("\n".join(item.nodeid for item in items if _is_alone(item)))


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker(_ALONE) is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures are made and ended within, for they may be what is timed."""
    with _admitted(fcntl.LOCK_EX if _is_alone(item) else fcntl.LOCK_SH):
        item.stash[_BEGUN_S] = _seconds(item)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append((_TOOK, _seconds(item) - item.stash[_BEGUN_S]))
        tier = next((t for t in MARKED_TIERS if item.get_closest_marker(t) is not None), "tests")
        report.user_properties.append((_TIER, tier))
    return report


def _seconds(item: pytest.Item) -> float:
    """A clock of processor seconds, children's included, which tell the same on a busy machine; for a test
    that keeps the machine to itself, of those that it keeps from others.
    """
    if _is_alone(item):
        return PROCESSES * time.monotonic()
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


@contextmanager
def _admitted(kind: int) -> Iterator[None]:
    """Together with others (LOCK_SH) or alone (LOCK_EX) among all processes that test this working tree.

    The folders themselves are locked: nothing has to be written, and nobody removes them (not on NFS,
    where a lock wants a file open for writing). A test that starts pytest here would wait for itself.
    """
    with _opened(_TREE / "tests") as door, _opened(_TREE) as room:
        fcntl.flock(door, kind)  # whoever waits to be alone lets nobody in meanwhile
        fcntl.flock(room, kind)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # a process that the test forked has the folder open as well


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds",
        choices=("compare", "update"),
        help=f"whole tiers only: compare what each folder took with {SECONDS.name}, and fail where a tier "
        "takes more than four times as much; or write it there anew",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Seconds(update=config.getoption("seconds") == "update"))


class _Seconds:
    """What the tests of each folder took, by tier."""

    def __init__(self, update: bool) -> None:
        self._update = update
        self._begun_s = time.monotonic()
        self._known: dict[str, dict[str, float]] = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
        self._taken: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        took = told.get(_TOOK)
        if took is not None:
            tier = str(told[_TIER])
            folder = Path(report.nodeid.partition("::")[0]).parent.as_posix()
            self._taken[tier][folder] += float(took)  # type: ignore[arg-type]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        slow = [t for t in self._taken if self._sum(t) > _SLOWEST * sum(self._expected(t).values())]
        if slow and not self._update and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for tier, taken in self._taken.items():
            expected = self._expected(tier)
            sums = f"{self._sum(tier):.0f} processor seconds; {SECONDS.name} says {sum(expected.values())}"
            terminalreporter.write_line(f"{tier}: {sums}")
            for folder, seconds in taken.items():
                if not self._update and seconds > 2 * expected.get(folder, 0) + _NOISE_S:
                    said = f"{folder} took {seconds:.0f} s, {SECONDS.name} says {expected.get(folder, 0)} s"
                    terminalreporter.write_line(f"warning: {tier}: {said}", yellow=True)
        if self._update and self._taken:
            self._write(max(self._taken, key=self._sum))

    def _sum(self, tier: str) -> float:
        return sum(self._taken[tier].values())

    def _expected(self, tier: str) -> dict[str, float]:
        return self._known.get(tier, {})

    def _write(self, tier: str) -> None:
        """tier: the one that was run; parameters of a test may be called as another one is."""
        taken = {folder: max(1, round(s)) for folder, s in self._taken[tier].items()}
        elapsed = {**self._known.get(ELAPSED, {}), tier: round(time.monotonic() - self._begun_s)}
        table = {**self._known, tier: {**self._expected(tier), **taken}, ELAPSED: elapsed}
        SECONDS.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n")
