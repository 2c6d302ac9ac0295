"""A worker that lives: results, errors, state, environment, pausing."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import state_of, wait_until

from collage_core.errors import WorkerError
from collage_core.worker import RemoteError, Worker, WorkerCrash, WorkerTimeout, child_state


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker({"COLLAGE_TEST_VARIABLE": "yes"}) as started:
        yield started


values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=200_000),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50, deadline=None)
@given(values)
def test_arguments_and_results_arrive_as_they_were(worker: Worker, value: object) -> None:
    assert worker.call(pickle.loads, pickle.dumps(value)) == value


def test_it_is_another_process_with_this_ones_path_and_the_given_environment(worker: Worker) -> None:
    assert worker.call(os.getpid) == worker.pid != os.getpid()
    assert worker.call(eval, "__import__('sys').path") == sys.path
    assert worker.call(os.getenv, "COLLAGE_TEST_VARIABLE") == "yes"
    assert worker.call(os.getsid, 0) == worker.pid
    assert worker.call(eval, "__import__('sys').stdin.read()") == ""


def test_it_keeps_state_between_calls(worker: Worker) -> None:
    worker.call(exec, "from collage_core.worker import child_state; child_state['kernel'] = [1, 2]")
    assert worker.call(eval, "__import__('collage_core.worker').worker.child_state['kernel']") == [1, 2]
    assert "kernel" not in child_state


def test_an_exception_carries_type_message_and_traceback_and_the_worker_lives(worker: Worker) -> None:
    with pytest.raises(RemoteError, match=r"^ZeroDivisionError: division by zero$") as caught:
        worker.call(exec, "def broken():\n    return 1 / 0\nbroken()")
    assert caught.value.type_name == "ZeroDivisionError"
    assert "in broken" in caught.value.traceback
    assert worker.alive
    with pytest.raises(RemoteError, match=r"^json\.decoder\.JSONDecodeError"):
        worker.call(exec, "import json; json.loads('{')")


def test_what_cannot_be_pickled_is_an_error_and_the_worker_lives(worker: Worker) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        worker.call(lambda: 1)
    with pytest.raises(RemoteError, match="pickle"):
        worker.call(eval, "lambda: 1")
    with pytest.raises(RemoteError, match="no message"):
        worker.call(exec, "class Odd(Exception):\n    def __str__(self): return 1\nraise Odd")
    assert worker.call(abs, -1) == 1


def test_a_result_whose_class_is_not_known_here_kills_the_worker() -> None:
    with Worker() as worker:
        source = "import sys, types\nm = types.ModuleType('elsewhere')\nsys.modules['elsewhere'] = m\n"
        worker.call(exec, source + "exec('class Thing: pass', m.__dict__)\nm.Thing.__module__ = 'elsewhere'")
        with pytest.raises(WorkerError, match=r"cannot be read here: ModuleNotFoundError: .*elsewhere"):
            worker.call(eval, "__import__('elsewhere').Thing()")
        assert not worker.alive


def test_errors_survive_pickling() -> None:
    for error in (
        WorkerCrash("SIGSEGV", "said\n"),
        WorkerTimeout(1.5, "said\n"),
        RemoteError("ValueError", "bad", "Traceback"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)


def test_pause_stops_all_of_its_processes_until_resume(worker: Worker) -> None:
    grandchild = worker.call(eval, "__import__('subprocess').Popen(['sleep', '600']).pid")
    for _ in range(20):
        worker.pause()
        assert state_of(worker.pid) == "T"
        worker.resume()
        assert worker.call(abs, -2) == 2
    worker.pause()
    assert wait_until(lambda: state_of(grandchild) == "T")
    worker.resume()
    assert worker.call(abs, -3) == 3


def test_another_thread_may_end_a_call(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    source = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    with Worker() as worker, ThreadPoolExecutor(1) as executor:
        call = executor.submit(lambda: worker.call(exec, source))
        assert wait_until(begun.exists)
        worker.interrupt()
        with pytest.raises(WorkerCrash, match="SIGKILL"):
            call.result()
        worker.interrupt()
        assert not worker.alive


def test_close_ends_it_and_what_it_has_started() -> None:
    worker = Worker()
    grandchild = worker.call(eval, "__import__('subprocess').Popen(['sleep', '600']).pid")
    pid = worker.pid
    worker.close()
    worker.close()
    worker.kill()
    assert state_of(pid) == ""
    assert wait_until(lambda: state_of(grandchild) in ("", "Z"))
    with pytest.raises(WorkerError, match="closed"):
        worker.call(abs, -1)


def test_close_ends_a_paused_and_a_stubborn_one(tmp_path: Path) -> None:
    paused, stubborn = Worker(), Worker()
    paused.pause()
    done = tmp_path / "done"
    slow = f"import atexit, pathlib, time; atexit.register(pathlib.Path({str(done)!r}).touch)"
    stubborn.call(exec, f"{slow}; atexit.register(time.sleep, 60)")
    paused.close()
    stubborn.close()
    assert not done.exists(), "it was waited for"
    assert state_of(paused.pid) == state_of(stubborn.pid) == ""


def test_a_dropped_worker_is_killed() -> None:
    worker = Worker()
    pid = worker.pid
    del worker
    assert state_of(pid) == ""


def test_it_outlives_the_thread_that_started_it() -> None:
    with ThreadPoolExecutor(1) as executor:
        worker = executor.submit(Worker).result()
    with worker:
        time.sleep(0.3)
        assert worker.call(abs, -1) == 1


def test_extra_plugins_are_in_the_childs_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_of_worker_test.py").write_text(
        "from collage_core.plugins import hookimpl\n"
        "from collage_core.reference import ReferenceBackend\n"
        "class Other(ReferenceBackend):\n"
        "    name = 'other'\n"
        "@hookimpl\n"
        "def collage_backends():\n"
        "    return [Other()]\n"
    )
    (tmp_path / "broken_plugin_of_worker_test.py").write_text("raise ImportError('no library')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLLAGE_PLUGINS", "broken_plugin_of_worker_test")
    registry = "__import__('collage_core.plugins').plugins.default_registry()"
    with Worker(plugins=["plugin_of_worker_test"]) as worker:
        assert "other" in worker.call(eval, f"list({registry}.backends)")
        failures = worker.call(eval, f"{registry}.failures")
        assert failures["broken_plugin_of_worker_test"] == "ImportError: no library"
        assert "plugin_of_worker_test" not in sys.modules


def test_modules_are_imported_before_the_first_call() -> None:
    with Worker(imports=["wave", "a_module_that_nobody_has"]) as worker:
        assert worker.call(eval, "'wave' in __import__('sys').modules")
    with Worker() as worker:
        assert not worker.call(eval, "'wave' in __import__('sys').modules")


def test_what_measures_and_runs_imports_nothing_that_only_searches() -> None:
    unwanted = tuple(f"collage_core.{n}" for n in ("candidates", "measuring", "pipeline", "search"))
    wanted = ["collage_core.costs", "collage_core.plugins", "collage_core.runtime.session"]
    with Worker(imports=wanted) as worker:
        names = worker.call(eval, "list(__import__('sys').modules)")
    assert set(wanted) <= set(names)
    assert not [n for n in names if n.startswith(unwanted)]
