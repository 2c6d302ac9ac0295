"""Processes: as many threads as asked for, none spins once a call has returned, none is left when kernels are
gone; nothing is reported to anybody.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from collage_onnxruntime import session

_SCRIPT = """
import gc, os, sys, time
from dataclasses import replace
import numpy as np
import onnx
from onnx import helper, numpy_helper
from collage_core.devices import IMMEDIATE
from collage_core.target import Target
from collage_core.ir import Subgraph, from_model
from collage_onnxruntime.backend import OnnxRuntimeBackend
from collage_onnxruntime.session import Waiting, bind, open_session
import onnxruntime

def model(size=512, layers=4):
    weights = np.random.default_rng(0).standard_normal((size, size), np.float32) / size
    names = ["x", *(f"v{i}" for i in range(layers))]
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", [a, "w"], [b], name=b) for a, b in zip(names, names[1:])],
            "products",
            [helper.make_tensor_value_info("x", 1, [size, size])],
            [helper.make_tensor_value_info(names[-1], 1, [size, size])],
            [numpy_helper.from_array(weights, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )

def tasks():
    return len(os.listdir("/proc/self/task"))

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

graph = from_model(model())
part = Subgraph(graph, graph.all_nodes)
backend = OnnxRuntimeBackend()

def built(threads, part=part, **changes):
    target = Target("cpu", threads)
    x, y = np.ones((512, 512), np.float32), np.empty((512, 512), np.float32)
    variant = replace(backend.variants(part, target)[0], **changes)
    kernel = backend.build(part, variant, target)
    return kernel.bind([x], [y], np.empty(0, np.uint8), IMMEDIATE)

before = tasks()
"""


def _printed(code: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT + code], capture_output=True, text=True, check=True, timeout=120
    )
    return [float(word) for word in done.stdout.split()]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_kernel_starts_exactly_its_threads(threads: int) -> None:
    started, left = _printed(f"""
call = built({threads})
call()
print(tasks() - before)
del call
end = time.monotonic() + 10  # a thread that has been joined may still be listed
while tasks() > before and time.monotonic() < end:
    time.sleep(0.01)
print(tasks() - before)
""")
    assert started == threads - 1
    assert left == 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_threads_of_a_group_that_take_all_processors_have_one_each() -> None:
    """Not those of the whole model, nor where there are more threads than processors."""
    group, whole, more, allowed = _printed("""
def most_processors(threads, **which):
    known = {*os.listdir("/proc/self/task")}
    call = built(threads, **which)
    call()
    started = {*os.listdir("/proc/self/task")} - known
    return max(len(os.sched_getaffinity(int(task))) for task in started)

allowed = len(os.sched_getaffinity(0))
group = Subgraph(graph, [n.id for n in graph.nodes[1:]])
print(most_processors(allowed, part=group), most_processors(allowed))
print(most_processors(allowed + 1, part=group), allowed)
""")
    assert group == 1
    assert whole == more == allowed


@pytest.mark.parametrize(("threads", "pinned"), [(1, []), (3, []), (4, ["6;8;10"]), (5, [])])
def test_only_threads_that_take_all_processors_are_pinned(
    monkeypatch: pytest.MonkeyPatch, threads: int, pinned: list[str]
) -> None:
    """Processes with fewer would all be on the first ones."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {9, 3, 7, 5})
    assert list(session._pinned(threads, session.Waiting.SPIN_WITHIN).values()) == pinned
    assert session._pinned(threads, session.Waiting.SPIN) == {}


def test_support_is_asked_without_threads() -> None:
    answers, started = _printed("""
answers = backend.supported([part] * 3, Target("cpu", 3))
print(answers.count(None), tasks() - before)
""")
    assert answers == 3
    assert started == 0


def test_hundreds_of_kernels_leave_nothing_behind() -> None:
    """Each packs a megabyte: had they been kept, 100 would be seen."""
    threads, grown_mb = _printed("""
for i in range(130):
    built(2)()
    if i == 29:
        gc.collect()
        at_first = resident_mb()
gc.collect()
print(tasks() - before, resident_mb() - at_first)
""")
    assert threads == 0
    assert grown_mb < 40


@pytest.mark.alone
def test_no_thread_spins_long_after_a_call() -> None:
    """The processor time that the process spends while it sleeps for 100 ms after a call: the library's own
    waiting shows that it could be seen.
    """
    whole, without_option, beside_others, the_librarys = _printed("""
def spent_ms(call):
    spent = []
    for _ in range(5):
        call()
        start = time.process_time()
        time.sleep(0.1)
        spent.append((time.process_time() - start) * 1e3)
    return sorted(spent)[2]

print(spent_ms(built(2)))
print(spent_ms(built(2, options=())))
print(spent_ms(built(2, Subgraph(graph, [n.id for n in graph.nodes[1:]]))))
x, y = np.ones((512, 512), np.float32), np.empty((512, 512), np.float32)
session = open_session(model().SerializeToString(), 2, Waiting.SPIN)
print(spent_ms(bind(session, {"x": x}, {"v3": y})))
""")
    assert max(whole, without_option, beside_others) < 5
    assert the_librarys > 5


@pytest.mark.alone
def test_the_thread_that_is_started_works() -> None:
    """Of the processor time of the calls, it takes its part."""
    (share,) = _printed("""
def spent_ns():
    spent = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/schedstat") as file:
            spent[task] = int(file.read().split()[0])
    return spent

others = spent_ns()
call = built(2)
call()
first = spent_ns()
for _ in range(30):
    call()
took = {task: ns - first[task] for task, ns in spent_ns().items()}
print(sum(ns for task, ns in took.items() if task not in others) / sum(took.values()))
""")
    assert share > 0.1


def test_its_telemetry_is_off(tmp_path: Path) -> None:
    code = "from collage_onnxruntime.session import _library; _library()"
    variables = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**variables, "TMPDIR": str(tmp_path)})
    assert not list(tmp_path.iterdir()), "its telemetry keeps a session there"
