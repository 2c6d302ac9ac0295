"""How a machine is set, and what a process may use of it: each check by itself."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from fake_machine import FakeMachine

from collage_core.doctor import Level
from collage_core.doctor.disk import cost_database
from collage_core.doctor.limits import memory, processor_quota, processors_allowed
from collage_core.doctor.machine import at_work, frequency, huge_pages, virtualisation


@pytest.mark.parametrize("threads", [1, 2])
def test_a_group_of_half_a_processor(machine: FakeMachine, threads: int) -> None:
    machine.write("sys/fs/cgroup/user/me/cpu.max", "50000 100000\n")
    (finding,) = processor_quota(machine.root, threads)
    assert finding.level is Level.PROBLEM
    assert f"may use 0.5 of a processor, and {threads} thread" in finding.what
    assert finding.advice.startswith(f"Raise its limit to {threads} ")
    assert "--threads" not in finding.advice


def test_a_group_of_fewer_processors_than_threads(machine: FakeMachine) -> None:
    machine.write("sys/fs/cgroup/user/cpu.max", "250000 100000\n")
    (finding,) = processor_quota(machine.root, 4)
    assert finding.level is Level.PROBLEM
    assert "2.5 processors" in finding.what
    assert "--threads 2" in finding.advice
    (finding,) = processor_quota(machine.root, 2)
    assert finding.level is Level.OK


def test_processors_that_may_not_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    (finding,) = processors_allowed(3)
    assert finding.level is Level.WARNING
    assert "3 of 8 processors" in finding.what
    (finding,) = processors_allowed(8)
    assert finding.level is Level.OK


@pytest.mark.parametrize(
    ("mebibytes", "level"), [(512, Level.PROBLEM), (2048, Level.WARNING), (5000, Level.OK)]
)
def test_memory_of_a_group(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, mebibytes: int, level: Level
) -> None:
    monkeypatch.setattr("collage_core.doctor.limits.machine_memory_bytes", lambda: 64 << 30)
    machine.write("sys/fs/cgroup/user/memory.max", f"{mebibytes << 20}\n")
    (finding,) = memory(machine.root)
    assert finding.level is level
    assert f"The control group may use {mebibytes / 1024:.1f} GiB" in finding.what


def idle(processor: int) -> AbstractContextManager[None]:
    return nullcontext()


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("cpu1/cpufreq/scaling_governor", "powersave", "The governor is performance and powersave"),
        ("cpu1/cpufreq/scaling_max_freq", "1500000", "no more than 1.5 of 3.0 GHz"),
        ("cpu0/cpufreq/scaling_cur_freq", "1000000", "at work runs at 1.0 of 3.0 GHz"),
    ],
)
def test_frequency(machine: FakeMachine, file: str, text: str, said: str) -> None:
    (finding,) = frequency(machine.root, {0, 1}, idle)
    assert finding.level is Level.OK
    assert "3.0 of 3.0 GHz" in finding.what
    machine.write(f"sys/devices/system/cpu/{file}", text + "\n")
    (finding,) = frequency(machine.root, {0, 1}, idle)
    assert finding.level is Level.WARNING
    assert said in finding.what
    assert finding.advice


def test_a_processor_at_work_is_the_one_that_is_looked_at() -> None:
    allowed = os.sched_getaffinity(0)
    with at_work(max(allowed)):
        assert os.sched_getaffinity(0) == {max(allowed)}
    assert os.sched_getaffinity(0) == allowed


def test_a_virtual_machine(machine: FakeMachine) -> None:
    machine.write("proc/cpuinfo", "flags\t: fpu hypervisor avx2\n")
    (finding,) = virtualisation(machine.root)
    assert finding.level is Level.WARNING
    assert "virtual machine" in finding.what


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".dockerenv", ""),
        ("run/.containerenv", ""),
        ("proc/self/cgroup", "0::/kubepods/burstable/pod1\n"),
    ],
)
def test_a_container(machine: FakeMachine, name: str, text: str) -> None:
    machine.write(name, text)
    (finding,) = virtualisation(machine.root)
    assert finding.level is Level.WARNING
    assert "container" in finding.what


def test_huge_pages_that_are_switched_off(machine: FakeMachine) -> None:
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    (finding,) = huge_pages(machine.root)
    assert finding.level is Level.WARNING
    assert "switched off" in finding.what
    assert "echo madvise" in finding.advice


def test_the_folder_of_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "not" / "yet" / "costs.sqlite"
    (finding,) = cost_database(path)
    assert finding.level is Level.OK
    assert list(tmp_path.iterdir()) == [], "nothing is left"
    (tmp_path / "not").write_text("a file")
    (finding,) = cost_database(path)
    assert finding.level is Level.PROBLEM
    assert "cannot be kept" in finding.what
    assert "COLLAGE_HOME" in finding.advice
    (finding,) = cost_database(Path("/proc/self/costs.sqlite"))
    assert finding.level is Level.PROBLEM
    kept = tmp_path / "costs.sqlite"
    kept.write_text("")
    monkeypatch.setattr("os.access", lambda file, mode: file != kept)
    (finding,) = cost_database(kept)
    assert finding.level is Level.PROBLEM
    assert "it may not be written" in finding.what


@pytest.mark.parametrize(
    ("mebibytes", "level"), [(50, Level.PROBLEM), (500, Level.WARNING), (2000, Level.OK)]
)
def test_room_for_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mebibytes: int, level: Level
) -> None:
    usage = type("Usage", (), {"free": mebibytes << 20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    (finding,) = cost_database(tmp_path / "costs.sqlite")
    assert finding.level is level
