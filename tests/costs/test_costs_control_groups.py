"""Limits of control groups, of both versions, in a container and beneath others."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import FakeMachine

from collage_core.costs.control_groups import cpu_quota, memory_limits_bytes

_V1 = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 {top} /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
_MEMBER = "4:memory:/box/inner\n3:cpu,cpuacct:/box/inner\n1:name=systemd:/\n0::/\n"
_NO_LIMIT = "9223372036854771712\n"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_version_2_takes_the_tightest_of_all_groups_above(machine: FakeMachine) -> None:
    assert cpu_quota(machine.root) is None
    assert memory_limits_bytes(machine.root) == []
    machine.write("sys/fs/cgroup/user/me/cpu.max", "max 100000\n")
    machine.write("sys/fs/cgroup/user/cpu.max", "50000 100000\n")
    machine.write("sys/fs/cgroup/user/me/memory.max", "3000\n")
    machine.write("sys/fs/cgroup/user/memory.max", "2000\n")
    assert cpu_quota(machine.root) == 0.5
    assert memory_limits_bytes(machine.root) == [3000, 2000]
    machine.write("sys/fs/cgroup/user/me/cpu.max", "20000 100000\n")
    assert cpu_quota(machine.root) == 0.2


def test_version_2_in_a_container(machine: FakeMachine) -> None:
    """Its own group is what is mounted, and called the root."""
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("sys/fs/cgroup/cpu.max", "150000 100000\n")
    assert cpu_quota(machine.root) == 1.5
    machine.write("proc/self/cgroup", "0::/../elsewhere\n")
    assert cpu_quota(machine.root) == 1.5


@pytest.mark.parametrize("top", ["/", "/box"])
def test_version_1(machine: FakeMachine, top: str) -> None:
    """A container without a name space of its own sees its group mounted, under the name the host has."""
    machine.write("proc/self/cgroup", _MEMBER)
    machine.write("proc/self/mountinfo", _V1.format(top=top))
    inner = "inner" if top == "/box" else "box/inner"
    cpu, memory = (f"sys/fs/cgroup/{name}/" for name in ("cpu,cpuacct", "memory"))
    machine.write(f"{cpu}{inner}/cpu.cfs_quota_us", "-1\n")
    machine.write(f"{cpu}{inner}/cpu.cfs_period_us", "100000\n")
    machine.write(f"{memory}{inner}/memory.limit_in_bytes", _NO_LIMIT)
    assert cpu_quota(machine.root) is None
    assert memory_limits_bytes(machine.root) == [int(_NO_LIMIT)]
    box = Path(inner).parent
    machine.write(f"{cpu}{box}/cpu.cfs_quota_us", "100000\n")
    machine.write(f"{cpu}{box}/cpu.cfs_period_us", "200000\n")
    machine.write(f"{memory}{box}/memory.limit_in_bytes", "1000\n")
    assert cpu_quota(machine.root) == 0.5
    assert memory_limits_bytes(machine.root) == [int(_NO_LIMIT), 1000]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("proc/self/cgroup", None),
        ("proc/self/cgroup", "1:name=systemd:/\n"),
        ("proc/self/cgroup", "0::/user/somebody\n"),
        ("proc/self/mountinfo", None),
        ("proc/self/mountinfo", "31 23 0:28 / /sys rw - sysfs sysfs rw\n"),
    ],
)
def test_groups_that_cannot_be_seen_are_not_without_limit(
    machine: FakeMachine, name: str, text: str | None
) -> None:
    if text is None:
        (machine.root / name).unlink()
    else:
        machine.write(name, text)
    for ask in (cpu_quota, memory_limits_bytes):
        with pytest.raises(FileNotFoundError):
            ask(machine.root)
