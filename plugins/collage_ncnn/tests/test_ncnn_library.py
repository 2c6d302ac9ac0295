"""Finding and loading the library, and the threads it runs on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collage_ncnn import plugin

from collage_core import Constraints, build, optimize
from collage_core.backend import BackendKind
from collage_core.plugins import Registry
from collage_core.target import Target
from collage_core.testing import bind, make_graph, make_group, node


def _run(code: str, **variables: str) -> str:
    """What a fresh interpreter prints that runs `code`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_GROUP = """
import os
import numpy as np
from collage_core.target import Target
from collage_core.testing import bind, check_group, make_group, node
from collage_ncnn.backend import NcnnBackend

def tasks():
    return len(os.listdir("/proc/self/task"))

rng = np.random.default_rng(0)
x = rng.standard_normal((1, 64, 28, 28), np.float32)
w = rng.standard_normal((64, 64, 3, 3), np.float32) / np.float32(24)
backend, group = NcnnBackend(), make_group([node("Conv", ["x", "w"], "y", pads=[1] * 4)], {"x": x}, {"w": w})
"""


def test_it_is_found_by_discovery() -> None:
    info = Registry([plugin], entry_points=False).backend("NCNN").info()
    assert (info.name, info.kind, info.available) == ("ncnn", BackendKind.OPERATOR, True)
    assert info.library_version == "1.0.20261020"


def test_offering_convolutions_loads_nothing() -> None:
    _run(
        f"""{_GROUP}
target = Target("cpu", 2)
backend.info(), backend.patterns(), backend.rules(), backend.environment(target)
variant = backend.variants(group, target)[0]
assert "ncnn" not in sys.modules and "/ncnn/" not in open("/proc/self/maps").read()
backend.build(group, variant, target)
assert "/ncnn/" in open("/proc/self/maps").read()
""".replace("import os\n", "import os, sys\n", 1)
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("variables", [{}, {"OMP_NUM_THREADS": "5"}])
def test_the_threads_of_the_target_and_no_other(threads: int, variables: dict[str, str]) -> None:
    """As many as the target says, more than there are processors, too."""
    code = f"""{_GROUP}
before = tasks()
check_group(backend, group, {{"x": x}}, Target("cpu", {threads}))
print(tasks() - before)
"""
    assert int(_run(code, OPENBLAS_NUM_THREADS="1", **variables)) == threads - 1


def test_its_threads_are_those_of_the_systems_openmp() -> None:
    """Which other libraries compute on: the wheel brings another one, which starts none."""
    code = f"""import ctypes
{_GROUP}
openmp = ctypes.CDLL("libgomp.so.1")
body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
before = tasks()
openmp.GOMP_parallel(body, None, 2, 0)
started = tasks() - before
check_group(backend, group, {{"x": x}}, Target("cpu", 2))
print(started, tasks() - before)
"""
    assert _run(code, OPENBLAS_NUM_THREADS="1").split() == ["1", "1"]


def test_two_threads_may_use_one_kernel(backend: Any, target: Any) -> None:
    """Each with buffers of its own. The binding keeps the interpreter's lock: calls take turns."""
    x = np.random.default_rng(0).standard_normal((1, 32, 20, 20), np.float32)
    w = np.random.default_rng(1).standard_normal((32, 32, 3, 3), np.float32)
    group = make_group([node("Conv", ["x", "w"], "y", pads=[1] * 4)], {"x": x}, {"w": w})
    variant = backend.variants(group, target)[1]
    kernel = backend.build(group, variant, target)
    bound = [bind(kernel, group, variant, {"x": x * factor}) for factor in (1, 2)]
    assert not any(b.call() for b in bound)
    expected = [b.outputs[0].copy() for b in bound]
    np.testing.assert_array_equal(expected[1], expected[0] * 2)
    wrong = []

    def many(index: int) -> None:
        for _ in range(100):
            bound[index].outputs[0][...] = np.nan
            bound[index].call()
            if not np.array_equal(bound[index].outputs[0], expected[index]):
                wrong.append(index)

    both = [threading.Thread(target=many, args=(i,)) for i in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert not wrong


def test_a_model_is_placed_and_run(tmp_path: Path) -> None:
    """Through `optimize`: measured in a worker, placed, built in this process, and right."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 16, 12, 12), np.float32)
    constants = {n: random.standard_normal((16, 16, 3, 3), np.float32) / np.float32(12) for n in ("v", "w")}
    constants["b"] = random.standard_normal(16, np.float32)
    nodes = [
        node("Conv", ["x", "v", "b"], "first", pads=[1] * 4),
        node("Relu", ["first"], "relu"),
        node("Tanh", ["relu"], "tanh"),
        node("Conv", ["tanh", "w"], "second", pads=[1] * 4),
    ]
    result = optimize(
        make_graph(nodes, {"x": x}, constants),
        backends=["ncnn"],
        target=Target("cpu", 2),
        registry=(registry := Registry([plugin], entry_points=False)),
        constraints=Constraints({"first": "ncnn", "relu": "ncnn", "second": "ncnn"}),
        costs=tmp_path / "costs.sqlite",
        inputs={"x": x},
        rounds=0,
    )
    named = [([result.graph.node(i).name for i in g.nodes], g.backend) for g in result.placement.groups]
    assert named == [(["first", "relu"], "ncnn"), (["tanh"], "reference"), (["second"], "ncnn")]
    found = build(result.graph, result.placement, registry=registry)({"x": x})["second"]
    between = np.tanh(np.maximum(_convolved(x, constants["v"]) + constants["b"][:, None, None], 0))
    np.testing.assert_allclose(found, _convolved(between, constants["w"]), atol=1e-4)


def _convolved(x: Any, w: Any) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    taken = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", taken, w)
