"""The whole examination of a machine, whether its processors are moved, and what is installed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine

from collage_core import Backend, BackendInfo, BackendKind, Registry
from collage_core.costs.lock import measuring_lock
from collage_core.costs.processors import Look
from collage_core.doctor import Finding, Level, examine
from collage_core.doctor.libraries import libraries
from collage_core.doctor.moves import moved_processors
from collage_core.peer import Peer, PeerInfo, PeerSession
from collage_core.plugins import hookimpl
from collage_core.report.doctor import doctor_json, doctor_text

_PROCESSORS = "collage_core.costs.processors"
TOGETHER, SHARED, APART = Look(120.0, 1.0), Look(105.0, 1.7), Look(310.0, 1.0)


def told(machine: FakeMachine) -> dict[str, list[Finding]]:
    """What the whole examination finds, by check."""
    found: dict[str, list[Finding]] = {}
    registry = Registry(entry_points=False)
    for finding in examine(registry, machine.root, clock=machine.clock, sleep=machine.sleep):
        found.setdefault(finding.check, []).append(finding)
    return found


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of two processors, and a folder for costs."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("os.sched_setaffinity", lambda _, numbers: None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))


_FILES = {
    "proc/loadavg": {"load"},
    "proc/stat": {"stolen time"},
    "proc/cpuinfo": {"virtualisation"},
    "proc/self/cgroup": {"threads", "memory"},
    "proc/self/mountinfo": {"threads", "memory"},
    "sys/kernel/mm/transparent_hugepage/enabled": {"huge pages"},
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": {"frequency"},
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": {"frequency"},
}
"""Which checks cannot tell without the file."""
_OF_FILES = set().union(*_FILES.values()) | {"processes"}


@pytest.mark.usefixtures("here")
def test_a_machine_that_is_fit(machine: FakeMachine) -> None:
    found = told(machine)
    for check in (*_OF_FILES, "processors allowed", "disk"):
        assert [f.level for f in found[check]] == [Level.OK], check
        assert found[check][0].advice == ""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", _FILES)
def test_a_file_that_is_absent_is_said_and_costs_nothing_else(machine: FakeMachine, name: str) -> None:
    (machine.root / name).unlink()
    for check, (finding,) in told(machine).items():
        if check in _OF_FILES:
            assert (finding.level is Level.UNKNOWN) == (check in _FILES[name]), check
        if check in _FILES[name]:
            assert "This could not be looked at: " in finding.what
            assert finding.advice


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", [n for n in _FILES if "governor" not in n])  # any name may be one
@pytest.mark.parametrize("text", ["", "what?\n"])
def test_a_file_that_is_not_understood_is_said(machine: FakeMachine, name: str, text: str) -> None:
    machine.write(name, text)
    found = told(machine)
    for check in _FILES[name]:
        assert [f.level for f in found[check]] == [Level.UNKNOWN], check


@pytest.mark.usefixtures("here")
def test_without_proc_and_sys_nothing_is_ok_by_them(machine: FakeMachine) -> None:
    machine.root = machine.root / "nothing"
    found = told(machine)
    assert {check for check, (f, *_) in found.items() if f.level is Level.UNKNOWN} >= _OF_FILES


def test_all_that_can_be_wrong_fits_on_a_screen(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, two_cores: None
) -> None:
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", Partner([SHARED]))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setenv("COLLAGE_HOME", "/proc/self")
    machine.write("proc/loadavg", "9.0 9.0 9.0 9/999 99999\n")
    machine.write("proc/cpuinfo", "flags : hypervisor\n")
    machine.write(".dockerenv", "")
    machine.write("sys/fs/cgroup/user/cpu.max", "50000 100000\n")
    machine.write("sys/fs/cgroup/user/memory.max", "99999\n")
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    machine.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    machine.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "1000000\n")
    machine.meanwhile += [
        *(partial(machine.process, 500 + n, "busy", 1.0) for n in range(20)),
        lambda: machine.processor_ticks(user=10_000, steal=10_000),
    ]
    missing = _Plugin(*(_Library(f"library{n}", "it is not installed") for n in range(20)))
    registry = Registry([missing], entry_points=False)
    found = examine(registry, machine.root, clock=machine.clock, sleep=machine.sleep)
    levels = [list(Level).index(f.level) for f in found]
    assert levels == sorted(levels)
    assert all(f.level in (Level.PROBLEM, Level.WARNING) and f.advice for f in found)
    lines = doctor_text(doctor_json(found)).splitlines()
    assert len({f.check for f in found}) == 12
    assert len(lines) <= 24
    assert all(len(line) <= 160 for line in lines)


class Partner:
    """In place of the process on the other processor."""

    def __init__(self, looks: Iterable[Look | None]) -> None:
        self.looks = list(looks)

    def __call__(self, numbers: list[int]) -> Partner:
        return self

    def look(self) -> Look | None:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def close(self) -> None:
        pass


@pytest.fixture
def two_cores(here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(f"{_PROCESSORS}._one_of_each_core", list)
    monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", "20")
    monkeypatch.setenv("COLLAGE_LOCK", str(tmp_path / "lock"))


def no_sleep(seconds: float) -> None:
    pass


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("looks", "level", "said"),
    [
        ([TOGETHER], Level.OK, "stayed together"),
        ([APART], Level.OK, "stayed together"),  # nothing nearer has been seen
        ([SHARED], Level.WARNING, "Two processors share a core now (40 of 40 looks"),
        (
            [SHARED] * 10 + [TOGETHER],
            Level.WARNING,
            "being moved, to one core or far from each other (10 of 40",
        ),
        (
            [APART] * 10 + [TOGETHER],
            Level.WARNING,
            "being moved, to one core or far from each other (10 of 40",
        ),
        ([None], Level.UNKNOWN, "no second processor was free"),
        ([None] * 10 + [TOGETHER], Level.OK, "stayed together"),
    ],
)
def test_moved_processors(
    monkeypatch: pytest.MonkeyPatch, looks: list[Look | None], level: Level, said: str
) -> None:
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", Partner(looks))
    (finding,) = moved_processors(no_sleep)
    assert finding.level is level
    assert said in finding.what


@pytest.mark.usefixtures("two_cores")
def test_a_measurement_of_somebody_else_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{_PROCESSORS}._Partner", None)
    entered, leave = threading.Event(), threading.Event()

    def measure() -> None:
        with measuring_lock():
            entered.set()
            leave.wait()

    measuring = threading.Thread(target=measure)
    measuring.start()
    try:
        assert entered.wait(60)
        (finding,) = moved_processors(no_sleep)
    finally:
        leave.set()
        measuring.join()
    assert finding.level is Level.UNKNOWN
    assert "something else is being measured" in finding.what


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("limit_s", "numbers", "said"),
    [
        ("0", {0, 1}, "COLLAGE_SETTLING_LIMIT_S is 0"),
        ("20", {3}, "one core"),
        ("20", range(17), "more than 16"),
    ],
)
def test_processors_that_are_not_watched(
    monkeypatch: pytest.MonkeyPatch, limit_s: str, numbers: Iterable[int], said: str
) -> None:
    monkeypatch.setenv("COLLAGE_SETTLING_LIMIT_S", limit_s)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(numbers))
    (finding,) = moved_processors(no_sleep)
    assert finding.level is Level.UNKNOWN
    assert said in finding.what


class _Library(Backend):
    def __init__(self, name: str, reason: str | None = None, device: str = "cpu") -> None:
        self.name = name
        self.reason = reason
        self.device = device

    def info(self) -> BackendInfo:
        version = None if self.reason else "3.1"
        return BackendInfo(self.name, BackendKind.OPERATOR, "1.0", version, (self.device,), self.reason)

    def variants(self, subgraph: Any, target: Any) -> Any:
        return []

    def build(self, subgraph: Any, variant: Any, target: Any) -> Any:
        raise NotImplementedError


class _Runtime(Peer):
    name = "runtime"

    def info(self) -> PeerInfo:
        return PeerInfo(self.name, "1.0", None, "its package is not installed")

    def load(self, model: Path, target: Any) -> PeerSession:
        raise NotImplementedError


class _Plugin:
    def __init__(self, *backends: Backend) -> None:
        self._backends = backends

    @hookimpl
    def collage_backends(self) -> list[Backend]:
        return list(self._backends)

    @hookimpl
    def collage_peers(self) -> list[Peer]:
        return [_Runtime()]


class _Broken:
    @hookimpl
    def collage_backends(self) -> list[Backend]:
        raise RuntimeError("broken on purpose")


def test_libraries() -> None:
    abacus = _Library("abacus", "its beads are older than 2.0: pip install beads")
    elsewhere = _Library("dials", "no dials are installed", "dial")
    registry = Registry([_Plugin(_Library("sums"), abacus, elsewhere), _Broken()], entry_points=False)
    found = libraries(registry)
    by_level = {level: [f.what for f in found if f.level is level] for level in Level}
    (failed,) = by_level[Level.PROBLEM]
    assert "fails: RuntimeError: broken on purpose." in failed
    assert by_level[Level.WARNING] == [
        "abacus is not available: its beads are older than 2.0: pip install beads.",
        "runtime is not available: its package is not installed.",
    ]
    assert by_level[Level.OK] == ["sums 3.1.", "For devices that have no plugin here: dials (dial)."]
    assert all(f.advice for f in found if f.level is not Level.OK)


def test_no_library_at_all() -> None:
    missing = libraries(Registry([_Plugin(_Library("abacus", "no beads"))], entry_points=False))
    assert any(f.level is Level.PROBLEM and "No backend is available" in f.what for f in missing)
    (nothing,) = libraries(Registry(entry_points=False))
    assert nothing.level is Level.PROBLEM


def test_two_plugins_of_one_name() -> None:
    registry = Registry([_Plugin(_Library("abacus")), _Plugin(_Library("Abacus"))], entry_points=False)
    first, second, nothing = libraries(registry)
    for finding in (first, second):
        assert finding.level is Level.PROBLEM
        assert "bring a backend named 'abacus'" in finding.what
    assert "No backend is available" in nothing.what
