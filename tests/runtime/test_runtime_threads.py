"""A session's kernels run in threads of its own."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from weighted_bundle import bundle_of

from collage_core import Bundle, Context, Executable, Session, build, save
from collage_core.errors import CollageError, InputError
from collage_core.inference.contexts import Contexts
from collage_core.inference.profiles import Profiles
from collage_core.ir import from_model
from collage_core.runtime.threads import OwnThreads, in_a_thread_that_ends, own_threads
from collage_core.target import Target

_X = np.arange(6, dtype=np.float32).reshape(2, 3)
_LIMIT_S = 20.0


def _bundle(rows: int, threads: int | None = None) -> Bundle:
    """On the reference; for all processors where no number of threads is given."""
    text = f"g (float[{rows}, 3] x) => (float[{rows}, 3] y) {{y = Neg(x)}}"
    made = bundle_of(from_model(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')))
    target = Target.default() if threads is None else Target("cpu", threads)
    return replace(made, placement=replace(made.placement, target=target))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save([_bundle(2), _bundle(4)], tmp_path / "m.collage")
    return tmp_path / "m.collage"


@pytest.fixture
def threads() -> OwnThreads:
    return OwnThreads(1)


def test_no_caller_runs_a_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: set[threading.Thread] = set()
    opened_by: list[threading.Thread] = []
    execute, made = Context._execute, Executable.__init__

    def executed(context: Context) -> None:
        ran.add(threading.current_thread())
        execute(context)

    def make(self: Executable, *arguments: Any) -> None:
        opened_by.append(threading.current_thread())
        made(self, *arguments)

    monkeypatch.setattr(Context, "_execute", executed)
    monkeypatch.setattr(Executable, "__init__", make)
    with Session(path) as session, ThreadPoolExecutor(4) as callers:
        for rows in (2, 4) * 4:
            x = np.ones((rows, 3), np.float32)
            asked = [callers.submit(session.run, None, {"x": x}) for _ in range(4)]
            assert all((done.result()[0] == -1).all() for done in asked)
        assert len(ran) == 1, "one for all callers and shapes"
        assert threading.main_thread() not in {*ran, *opened_by}
        assert not any(thread.is_alive() for thread in opened_by), "what libraries keep for it would stay"


def test_what_fails_is_told_to_who_asked(path: Path) -> None:
    with Session(path) as session:
        for _ in range(3):
            with pytest.raises(InputError, match="no profile has the shapes x=3,3"):
                session.run(None, {"x": np.ones((3, 3), np.float32)})
            with pytest.raises(InputError, match="'x' has dtype float64"):
                session.run(None, {"x": np.ones((2, 3))})
        np.testing.assert_array_equal(session.run(None, {"x": _X})[0], -_X)


def test_closed(path: Path) -> None:
    session = Session(path)
    session.close()
    session.close()
    with pytest.raises(CollageError, match="this session is closed"):
        session.run(None, {"x": _X})


def test_what_was_asked_before_it_is_closed_ends_well(threads: OwnThreads) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        goes_on.wait(_LIMIT_S)
        return 3

    bundle = _bundle(2)
    contexts = Contexts(build(bundle.graph, bundle.placement), threads)
    with ThreadPoolExecutor(2) as asking:
        asked = asking.submit(contexts.lend, lambda _: work())
        begun.wait(_LIMIT_S)
        waits = asking.submit(contexts.lend, lambda _: 4)
        contexts.close()
        goes_on.set()
        assert asked.result() == 3
        with pytest.raises(CollageError, match="this session is closed"):
            waits.result()


def test_one_that_was_begun_and_not_counted_ends(threads: OwnThreads) -> None:
    """By who was interrupted in between: else two would run kernels where there is to be one."""
    one = threads.run(threading.current_thread)
    threads._begun = 0
    assert all(threads.run(threading.current_thread) is one for _ in range(20))


def test_they_know_themselves(threads: OwnThreads) -> None:
    assert not threads.is_one
    assert threads.run(lambda: threads.is_one)
    assert threads.run(lambda: threads.run(lambda: threads.run(lambda: 7))) == 7, "none waits for itself"


@pytest.fixture
def counted() -> Iterator[None]:
    """What goes does so because nobody holds it: none is collected."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("counted")
def test_of_a_session_that_nobody_holds_nothing_is_left(tmp_path: Path) -> None:
    """Not after a call that failed, either."""
    save(_bundle(2, threads=3), tmp_path / "m")  # no other test has a session of so many threads
    session = Session(tmp_path / "m")
    profiles = session._profiles
    assert isinstance(profiles, Profiles)
    thread = profiles._all[0].contexts.lend(lambda _: threading.current_thread())
    executable = weakref.ref(profiles._all[0].executable)
    with suppress(InputError):
        session.run(None, {"x": np.ones((3, 3), np.float32)})
    with suppress(InputError):
        session.run(None, {"x": np.ones((2, 3))})
    del session, profiles
    thread.join(_LIMIT_S)
    assert not thread.is_alive()
    assert executable() is None


@pytest.mark.usefixtures("counted")
def test_of_an_opening_that_fails_no_thread_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_by: list[threading.Thread] = []

    def build(*arguments: Any, **options: Any) -> Executable:
        opened_by.append(threading.current_thread())
        raise CollageError("it cannot be built")

    monkeypatch.setattr("collage_core.runtime.loading.build", build)
    with pytest.raises(CollageError, match="it cannot be built"):
        Session(path)
    opened_by[0].join(_LIMIT_S)
    assert not opened_by[0].is_alive()


def test_warnings_are_of_who_opens(path: Path) -> None:
    with pytest.warns(UserWarning, match="another number of threads") as told:
        Session(path, SimpleNamespace(intra_op_num_threads=Target.default().threads + 1)).close()
    assert Path(told[0].filename).name == "session.py"


def test_threads_that_ask_for_them_at_once_have_the_same() -> None:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    together = threading.Barrier(4)

    def ask(most: int) -> OwnThreads:
        together.wait(_LIMIT_S)
        return own_threads(1, most)

    try:
        with ThreadPoolExecutor(4) as asking:
            for _ in range(300):
                assert len({*asking.map(ask, [1] * 4)}) == 1
    finally:
        sys.setswitchinterval(before_s)


def test_contexts_are_kept_for_the_next_call(threads: OwnThreads) -> None:
    bundle = _bundle(2)
    contexts = Contexts(build(bundle.graph, bundle.placement), threads)
    one = contexts.lend(lambda context: context)
    with pytest.raises(ZeroDivisionError):
        contexts.lend(lambda context: 1 / 0)
    assert contexts.lend(lambda context: context) is one


def test_work_of_a_thread_that_ends() -> None:
    thread = in_a_thread_that_ends(threading.current_thread)
    thread.join(_LIMIT_S)
    assert not thread.is_alive()
    with pytest.raises(ZeroDivisionError):
        in_a_thread_that_ends(lambda: 1 / 0)


def test_no_thread_can_be_started(threads: OwnThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for run in (threads.run, in_a_thread_that_ends):
            with pytest.raises(CollageError, match="needs a thread of its own: can't start new thread"):
                run(lambda: ran.append(1))
    threads.run(lambda: ran.append(2))
    assert ran == [2], "what was refused does not run later"


_FORKS = """
import os, sys, threading, numpy as np
from collage_core import Session

x = np.ones((2, 3), np.float32)
session = Session(sys.argv[1])
is_over = threading.Event()

def answers():
    return all((session.run(None, {"x": x * k})[0] == -k).all() for k in range(5))

def keep_asking():
    while not is_over.is_set():
        assert answers()

callers = [threading.Thread(target=keep_asking) for _ in range(int(sys.argv[2]))]
for caller in callers:
    caller.start()
for _ in range(5):
    assert answers()
    child = os.fork()
    if child == 0:
        os._exit(0 if answers() else 1)
    assert os.waitpid(child, 0)[1] == 0
is_over.set()
"""


@pytest.mark.parametrize("callers", [0, 2])
def test_a_fork_answers_too(path: Path, callers: int) -> None:
    subprocess.run([sys.executable, "-c", _FORKS, path, str(callers)], check=True, timeout=60)


_SERVES_ON = """
import sys, threading, time, numpy as np
from collage_core import Session

def serve():
    threading.main_thread().join()
    x = np.ones((2, 3), np.float32)
    for session in (opened, Session(sys.argv[1])):
        assert (session.run(None, {"x": x})[0] == -1).all()
    print("served")

opened = Session(sys.argv[1])
threading.Thread(target=serve).start()
"""


def test_others_are_served_when_the_main_thread_has_ended(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SERVES_ON, path], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout == "served\n"


def test_sessions_and_their_profiles_share_them(path: Path) -> None:
    with Session(path) as first, Session(path) as second:
        told = []
        for session in (first, second):
            profiles = session._profiles
            assert isinstance(profiles, Profiles)
            told += [p.contexts.lend(lambda _: threading.current_thread()) for p in profiles._all]
        assert len(told) == 4
        assert len({*told}) == 1
