"""Who else is busy: told from two accounts of a machine whose files are written by the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_machine import OWN, FakeMachine
from processes import wait_until

from collage_core.doctor import Level
from collage_core.doctor.load import load_average, other_processes, stolen_time
from collage_core.doctor.sampling import Sample, sample

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def sampled(machine: FakeMachine, *meanwhile: Callable[[], object]) -> Sample:
    machine.meanwhile.extend(meanwhile)
    return sample(machine.root, machine.clock, machine.sleep, OWN)


def test_nothing_is_busy(machine: FakeMachine) -> None:
    machine.process(7, "sleeper", ran_s=500)
    taken = sampled(machine, lambda: machine.processor_ticks(idle=2 * _TICKS_PER_S))
    assert taken == Sample((), 0.0, 0.0)
    (finding,) = other_processes(taken)
    assert finding.level is Level.OK


def test_a_busy_process_is_named(machine: FakeMachine) -> None:
    machine.process(7, "a (strange) name", ran_s=500)
    machine.process(8, "modest", ran_s=1)
    taken = sampled(
        machine,
        lambda: machine.process(7, "a (strange) name", ran_s=500.9),
        lambda: machine.process(8, "modest", ran_s=1.04),
        lambda: machine.processor_ticks(user=_TICKS_PER_S, idle=_TICKS_PER_S),
    )
    assert tuple(taken.processes[0]) == (7, "a (strange) name", pytest.approx(0.9, abs=0.02))
    (finding,) = other_processes(taken)
    assert finding.level is Level.PROBLEM
    assert "a (strange) name (process 7) uses 90% of a processor" in finding.what
    assert "Wait until it is done" in finding.advice


def test_the_own_tree_is_no_load(machine: FakeMachine) -> None:
    machine.process(101, "worker", parent=OWN)
    machine.process(102, "compiler", parent=101)
    machine.process(103, "neighbour", parent=1)
    taken = sampled(
        machine,
        lambda: machine.process(OWN, "collage", 0.5),
        lambda: machine.process(101, "worker", 0.6, parent=OWN),
        lambda: machine.process(102, "compiler", 0.7, parent=101),
        lambda: machine.process(103, "neighbour", 0.2, parent=1),
        lambda: machine.processor_ticks(user=2 * _TICKS_PER_S),
    )
    assert [p.pid for p in taken.processes] == [103]
    assert taken.elsewhere == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(("processes", "level"), [(2, Level.WARNING), (3, Level.PROBLEM)])
def test_many_that_are_a_little_busy_are_a_problem_together(
    machine: FakeMachine, processes: int, level: Level
) -> None:
    def run() -> None:
        for number in range(processes):
            machine.process(10 + number, f"p{number}", 0.2)

    found = other_processes(sampled(machine, run))
    assert [f.level for f in found] == [level] * processes


def test_a_number_that_was_given_anew_is_another_process(machine: FakeMachine) -> None:
    machine.process(7, "old", ran_s=500, begun=5)
    (busy,) = sampled(machine, lambda: machine.process(7, "new", ran_s=0.8, begun=900)).processes
    assert tuple(busy) == (7, "new", pytest.approx(0.8, abs=0.02))


def test_what_cannot_be_seen_is_told_from_the_processors(machine: FakeMachine) -> None:
    taken = sampled(machine, lambda: machine.processor_ticks(user=_TICKS_PER_S, idle=_TICKS_PER_S))
    (finding,) = other_processes(taken)
    assert finding.level is Level.PROBLEM
    assert "What cannot be seen here, or is over, used 100% of a processor" in finding.what


def test_processes_are_told_without_an_account_of_the_processors(machine: FakeMachine) -> None:
    (machine.root / "proc/stat").unlink()
    taken = sampled(machine, lambda: machine.process(7, "busy", 1.0))
    (finding,) = other_processes(taken)
    assert "busy (process 7)" in finding.what
    (unseen,) = stolen_time(taken)
    assert unseen.level is Level.UNKNOWN
    assert "could not be looked at" in unseen.what


@pytest.mark.parametrize(("steal", "level"), [(0, Level.OK), (3, Level.WARNING), (20, Level.PROBLEM)])
def test_stolen_time(machine: FakeMachine, steal: int, level: Level) -> None:
    taken = sampled(machine, lambda: machine.processor_ticks(idle=200 - steal, steal=steal))
    assert taken.elsewhere == 0.0, "nobody worked here"
    (finding,) = stolen_time(taken)
    assert finding.level is level
    assert not steal or f"took {steal / 2:.0f}% of the processors' time" in finding.what


def test_load_average(machine: FakeMachine) -> None:
    (finding,) = load_average(machine.root)
    assert finding.level is Level.OK
    machine.write("proc/loadavg", "2.50 0.20 0.30 1/100 4711\n")
    (finding,) = load_average(machine.root)
    assert finding.level is Level.WARNING
    assert "2.5 processes" in finding.what


def test_a_real_busy_process() -> None:
    """By this machine's own /proc; it is over when the process has run for half a second, however long that
    takes.
    """
    with (
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as asking,
    ):

        def ran_ticks() -> int:
            fields = Path(f"/proc/{busy.pid}/stat").read_text().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        now_s = [0.0]

        def until_it_ran(seconds: float) -> None:
            now_s[0] += seconds
            begun = ran_ticks()
            assert wait_until(lambda: ran_ticks() >= begun + _TICKS_PER_S // 2)

        try:
            taken = sample(Path("/"), lambda: now_s[0], until_it_ran, asking.pid)
            own = sample(Path("/"), lambda: now_s[0], until_it_ran, os.getpid())
        finally:
            busy.kill()
            asking.kill()
    (found,) = [p for p in taken.processes if p.pid == busy.pid]
    assert found.share >= 0.5
    assert any(f.level is Level.PROBLEM and f"(process {busy.pid})" in f.what for f in other_processes(taken))
    assert busy.pid not in [p.pid for p in own.processes], "a child of this process"
