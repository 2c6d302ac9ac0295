"""A worker that dies, hangs, floods or leaks; and one whose parent does."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from hanging import HANGING
from processes import children, gone, wait_until

from collage_core.errors import WorkerError
from collage_core.worker import Worker, WorkerCrash, WorkerTimeout
from collage_core.worker.worker import _spawner

_LONG_S = 120.0
"""What is waited for comes long before, on whatever machine."""


@pytest.mark.parametrize(
    ("source", "cause", "said"),
    [
        ("import ctypes\ndef inner():\n    ctypes.string_at(1)\ninner()", "SIGSEGV", "string_at"),
        ("import sys, os\nprint('bad free')\nos.abort()", "SIGABRT", "bad free"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL", ""),
        ("import os; os._exit(3)", "exit code 3", ""),
        ("import sys; sys.exit('no licence')", "exit code 1", "no licence"),
        ("raise SystemExit", "exit code 0", ""),
        ("import os; os.closerange(3, 100); __import__('time').sleep(600)", "did not exit", ""),
    ],
)
def test_a_crash_costs_the_call_and_says_why(
    source: str, cause: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cause != "did not exit":
        monkeypatch.setattr("collage_core.worker.worker._CLOSE_S", _LONG_S)  # who exits may be slow to
    with Worker() as worker:
        with pytest.raises(WorkerCrash) as caught:
            worker.call(exec, source)
        assert cause in caught.value.cause
        assert cause in str(caught.value)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not worker.alive
        with pytest.raises(WorkerError):
            worker.call(abs, -1)


@pytest.fixture
def ignored() -> Iterator[None]:
    """How children end, by this process: daemons do, and hand it on to those that they start."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("ignored")
def test_a_crash_is_one_though_the_kernel_does_not_tell_how_children_end() -> None:
    with Worker() as worker:
        assert worker.call(subprocess.call, ["false"]) == 1, "it is told to the worker itself"
        with pytest.raises(WorkerCrash, match="nobody can tell how, for SIGCHLD is ignored"):
            worker.call(os._exit, 3)
        assert not worker.alive
    with Worker() as worker:
        os.kill(worker.pid, signal.SIGKILL)
        assert wait_until(lambda: gone(worker.pid))
        worker.pause()
        worker.resume()
        with pytest.raises(WorkerCrash, match="nobody can tell how"):
            worker.call(abs, -1)


@pytest.mark.parametrize("call", ["os.pipe", "socket.socketpair", "tempfile.TemporaryFile"])
def test_without_descriptors_it_cannot_be_started_and_leaves_none(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker():  # whatever is opened once for all is open
        pass
    gc.collect()  # not in between
    before = os.listdir("/proc/self/fd")

    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(f"collage_core.worker.worker.{call}", none_left)
    with pytest.raises(WorkerError, match=r"cannot be started: .*Too many open files"):
        Worker()
    assert os.listdir("/proc/self/fd") == before


def test_without_a_thread_it_cannot_be_started_and_the_next_can(monkeypatch: pytest.MonkeyPatch) -> None:
    # One of its own: that of other tests' workers must not end.
    spawner = cache(_spawner.__wrapped__)
    monkeypatch.setattr("collage_core.worker.worker._spawner", spawner)

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gc.collect()  # not in between
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(WorkerError, match="cannot be started: can't start new thread"):
            Worker()
    assert os.listdir("/proc/self/fd") == before
    with Worker() as worker:
        assert worker.call(abs, -1) == 1
        tasks = [Path(f"/proc/self/task/{t.native_id}/children") for t in spawner(os.getpid())._threads]
        assert [t.read_text().split() for t in tasks] == [[str(worker.pid)]], "nor is another started now"


def test_death_between_calls_is_told_by_the_next() -> None:
    with Worker() as worker:
        os.kill(worker.pid, signal.SIGKILL)
        assert wait_until(lambda: not worker.alive)
        with pytest.raises(WorkerCrash, match="SIGKILL"):
            worker.call(abs, -1)


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(600)",
        "while True: pass",
        "import ctypes; ctypes.PyDLL(None).sleep(600)",
        "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(600)",
    ],
    ids=["asleep", "busy", "holding the interpreter's lock", "deaf"],
)
def test_a_hang_is_ended_at_its_limit(source: str, hanging_clock: None) -> None:
    with Worker() as worker:
        pid = worker.pid
        worker.call(abs, -1)
        with pytest.raises(WorkerTimeout, match=r"no answer within 77 s; it said: thinking"):
            worker.call(exec, f"print('thinking')\n{HANGING}\n{source}", timeout_s=77)
        assert gone(pid)


def test_a_limit_is_one_of_seconds() -> None:
    with Worker() as worker:
        worker.call(abs, -1)
        start = time.monotonic()
        with pytest.raises(WorkerTimeout, match=r"no answer within 0\.4 s"):
            worker.call(time.sleep, 600, timeout_s=0.4)
        assert time.monotonic() - start >= 0.4


def test_a_flood_of_output_neither_blocks_nor_fills_the_disk() -> None:
    with Worker() as worker:
        flood = "import os, time\nfor i in range(1500): os.write(1, b'x' * 65536)\n"
        until_cut = f"while os.fstat(1).st_size >= {64 << 20}: time.sleep(0.01)"
        worker.call(exec, flood + until_cut, timeout_s=_LONG_S)
        with pytest.raises(WorkerCrash, match="last words"):
            worker.call(exec, "import os; os.write(2, b'\\nlast words\\n'); os._exit(1)")


def test_a_leak_ends_at_the_memory_limit() -> None:
    with Worker(memory_limit_bytes=300 << 20) as worker:
        assert worker.call(eval, "len(b'x' * (100 << 20))") == 100 << 20
        with pytest.raises(WorkerCrash, match="more than 300 MiB of memory"):
            worker.call(exec, "import time\nhoard = b'x' * (400 << 20)\ntime.sleep(600)", timeout_s=_LONG_S)


def test_what_its_own_processes_use_counts() -> None:
    hoard = "hoard = b'x' * (400 << 20); import time; time.sleep(600)"
    with Worker(memory_limit_bytes=300 << 20) as worker:
        pid = worker.call(eval, f"__import__('subprocess').Popen([{sys.executable!r}, '-c', {hoard!r}]).pid")
        with pytest.raises(WorkerCrash, match="more than 300 MiB of memory"):
            worker.call(time.sleep, 600, timeout_s=_LONG_S)
    assert wait_until(lambda: gone(pid))


DAEMON = "__import__('subprocess').Popen(['sleep', '600'], start_new_session=True).pid"


def test_a_process_that_left_the_group_does_not_outlive_the_worker() -> None:
    with Worker() as closed:
        pids = [closed.call(eval, DAEMON)]
    assert wait_until(lambda: gone(pids[0]))
    with Worker() as crashed:
        pids.append(crashed.call(eval, DAEMON))
        with pytest.raises(WorkerCrash):
            crashed.call(os._exit, 1)
        assert wait_until(lambda: gone(pids[1]))
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with Worker() as killed:
        killed.pause()
        killed.kill()
    assert not gone(bystander.pid)
    bystander.kill()
    bystander.wait()


def test_many_crashes_leave_no_descriptors_and_no_processes() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Worker() as worker:
        worker.call(abs, -1)
    before = open_files()
    pids = []
    for _ in range(10):
        with Worker() as worker:
            pids.append(worker.pid)
            with pytest.raises(WorkerCrash):
                worker.call(os._exit, 1)
    assert open_files() == before
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


_MAKE_FILE = "__import__('tempfile').mkstemp()[1]"


@pytest.mark.parametrize("end", ["closed", "killed", "crashed"])
def test_temporary_files_go_with_the_worker(end: str, tmp_path: Path) -> None:
    with Worker({"TMPDIR": str(tmp_path)}) as worker:
        made = Path(worker.call(eval, _MAKE_FILE))
        assert made.is_file()
        assert made.is_relative_to(tmp_path)
        if end == "killed":
            worker.kill()
        if end == "crashed":
            with pytest.raises(WorkerCrash):
                worker.call(os._exit, 1)
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_go_with_a_killed_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process, _ = parent(f"print(busy.call(eval, {_MAKE_FILE!r}), flush=True)\ntime.sleep(600)")
    assert process.stdout is not None
    assert Path(process.stdout.readline().strip()).is_file()
    process.kill()
    process.communicate(timeout=_LONG_S)
    assert wait_until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.parametrize("given", ["", "not there", "here"])
def test_its_temporary_folder_is_absolute_and_its_own(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever $TMPDIR is; `tempfile` passes over what it cannot write to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with Worker({"TMPDIR": given}) as worker:
        folder = Path(worker.call(os.getenv, "TMPDIR") or "")
        assert folder.is_absolute()
        assert folder.is_dir()
        assert folder.name.startswith("collage-worker-")
        assert folder.is_relative_to(tmp_path / "here") == (given == "here")
    assert wait_until(lambda: not folder.exists())


@pytest.mark.alone
@pytest.mark.parametrize("after_ms", range(0, 60, 2))
def test_a_worker_killed_while_it_starts_leaves_nothing(after_ms: int, tmp_path: Path) -> None:
    with Worker({"TMPDIR": str(tmp_path)}) as worker:
        time.sleep(after_ms / 1000)
        worker.kill()
    assert list(tmp_path.iterdir()) == []


_STARTED: list[Worker] = []


def _started_and_stopped() -> int:
    _STARTED.append(Worker())
    pid = _STARTED[-1].pid
    os.kill(pid, signal.SIGSTOP)
    return pid


PARENT = """
import os, sys, threading, time
from collage_core.worker import Worker
busy, paused = Worker(), Worker()
paused.call(abs, -1)
paused.pause()
print(busy.pid, paused.pid, flush=True)
{last}
"""


def parent(last: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with two workers, leading a process group as a shell's job does; and the workers' ids."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(last=last)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        # Whoever runs the tests in the background has SIGINT ignored, and a child would inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    return process, [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_no_child_outlives_its_parent(number: signal.Signals) -> None:
    process, pids = parent("busy.call(exec, 'while True: pass')")
    assert len(pids) == 2
    time.sleep(0.2)
    assert not any(map(gone, pids))
    process.send_signal(number)
    process.communicate(timeout=_LONG_S)
    assert wait_until(lambda: all(map(gone, pids)))


@pytest.mark.parametrize("paused", [False, True])
def test_no_grandchild_outlives_a_killed_parent(paused: bool) -> None:
    process, pids = parent(
        f"""
for own_session in (False, True):
    popen = "__import__('subprocess').Popen(['sleep', '600'], start_new_session=%s).pid" % own_session
    print(busy.call(eval, popen), flush=True)
if {paused}:
    busy.pause()
print("ready", flush=True)
time.sleep(600)
"""
    )
    assert process.stdout is not None
    pids += [int(process.stdout.readline()) for _ in range(2)]
    assert process.stdout.readline() == "ready\n"
    guardians = children(pids[0]) + children(pids[1])
    assert len(guardians) == 4  # the two sleeping ones among them
    assert not any(map(gone, pids))
    process.kill()
    process.communicate(timeout=_LONG_S)
    everyone = [*pids, *guardians]
    wait_until(lambda: all(map(gone, everyone)))
    assert {p: Path(f"/proc/{p}/stat").read_text() for p in everyone if not gone(p)} == {}


def test_a_worker_stopped_as_soon_as_it_starts_does_not_outlive_a_killed_parent() -> None:
    process, pids = parent(
        """
late = [Worker() for _ in range(6)]
for worker in late:
    worker.pause()
print(*(worker.pid for worker in late), flush=True)
time.sleep(600)
"""
    )
    assert process.stdout is not None
    pids += map(int, process.stdout.readline().split())
    assert len(pids) == 8
    pids += [guardian for pid in pids for guardian in children(pid)]
    process.kill()
    process.communicate(timeout=_LONG_S)
    assert wait_until(lambda: all(map(gone, pids)))


def test_a_worker_of_a_worker_stopped_as_soon_as_it_starts_goes_with_it(tmp_path: Path) -> None:
    """By somebody who stops all of them and does not ask: `background.Tree`."""
    with Worker({"TMPDIR": str(tmp_path)}) as worker:
        pids = [worker.call(_started_and_stopped) for _ in range(3)]
        worker.kill()
        assert wait_until(lambda: all(map(gone, pids)))
    assert list(tmp_path.iterdir()) == []


def test_control_c_reaches_the_parent_which_ends_its_workers() -> None:
    process, pids = parent("busy.call(time.sleep, 600)")
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=_LONG_S)
    assert "KeyboardInterrupt" in errors
    assert wait_until(lambda: all(map(gone, pids)))


def test_control_c_does_not_reach_a_worker(tmp_path: Path) -> None:
    called, interrupted = tmp_path / "called", tmp_path / "interrupted"
    call = f"""
import pathlib, time
pathlib.Path({str(called)!r}).touch()
while not pathlib.Path({str(interrupted)!r}).exists():
    time.sleep(0.01)
print("interrupted in vain")
"""
    ignoring = "import signal; signal.signal(signal.SIGINT, lambda *_: None)\n"
    process, _ = parent(f"{ignoring}busy.call(exec, {call!r})\nprint(busy.call(abs, -7))")
    assert wait_until(called.exists)
    os.killpg(process.pid, signal.SIGINT)
    interrupted.touch()
    output, errors = process.communicate(timeout=_LONG_S)
    assert output.strip() == "7", errors
