"""Finding and loading the library, and the threads it runs on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collage_mkl import plugin
from collage_mkl.backend import MklBackend
from collage_mkl.library import LIBRARY_FILE, LIBRARY_VARIABLE

from collage_core import Constraints, build, optimize
from collage_core.backend import BackendKind, Bound, Kernel
from collage_core.devices import IMMEDIATE
from collage_core.formats import Array, empty, plain
from collage_core.ir import Subgraph
from collage_core.plugins import Registry
from collage_core.target import Target
from collage_core.testing import make_graph, node


def _run(code: str, **variables: str) -> str:
    """What a fresh interpreter prints that runs `code`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MKL_", "OMP_"))} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_found_by_discovery() -> None:
    registry = Registry([plugin], entry_points=False)
    info = registry.backend("MKL").info()
    assert (info.name, info.kind, info.available) == ("mkl", BackendKind.OPERATOR, True)


def test_offering_products_loads_nothing() -> None:
    _run("""
import onnx
from collage_core.target import Target
from collage_core.ir import Subgraph, from_model
from collage_mkl.backend import MklBackend
value, target = onnx.helper.make_tensor_value_info, Target("cpu", 2)
graph = onnx.helper.make_graph(
    [onnx.helper.make_node("MatMul", ["a", "b"], ["y"])], "test",
    [value(v, 1, (3, 3)) for v in "ab"], [value("y", 1, (3, 3))])
graph = from_model(onnx.helper.make_model(graph))
backend, subgraph = MklBackend(), Subgraph(graph, graph.all_nodes)
backend.info(), backend.patterns(), backend.rules(), backend.environment(target)
(variant,) = backend.variants(subgraph, target)
assert "libmkl" not in open("/proc/self/maps").read()
backend.build(subgraph, variant, target)
assert "libmkl" in open("/proc/self/maps").read()
""")


def test_a_setting_names_the_library(monkeypatch: pytest.MonkeyPatch, backend: Any, tmp_path: Path) -> None:
    found = LIBRARY_FILE.find()
    assert found is not None
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "missing.so"))
    assert LIBRARY_FILE.find() is None
    assert "missing.so" in backend.info().reason
    monkeypatch.setenv(LIBRARY_VARIABLE, str(found))
    assert LIBRARY_FILE.find() == found
    assert backend.info().available


def test_environment(backend: Any) -> None:
    """The runtime; neither a number of threads, which would bind the whole process, nor how they wait."""
    one, three = (backend.environment(Target("cpu", threads)) for threads in (1, 3))
    assert one == three
    assert one["MKL_THREADING_LAYER"] == "GNU"
    assert "OMP_WAIT_POLICY" not in one


def test_it_does_not_decide_on_fewer_threads_itself() -> None:
    code = """
import ctypes
from collage_mkl.library import LIBRARY_FILE, load
load()
print(ctypes.CDLL(str(LIBRARY_FILE.find())).MKL_Get_Dynamic())
"""
    assert [_run(code, MKL_DYNAMIC=v).strip() for v in ("TRUE", "FALSE")] == ["0", "0"]


def test_another_threading_layer_is_an_error() -> None:
    """Where somebody has loaded the library before, for threads of another runtime."""
    output = _run("""
import ctypes
from collage_core.errors import BackendUnavailableError
from collage_mkl.library import LIBRARY_FILE, load
SEQUENTIAL = 1
other = ctypes.CDLL(str(LIBRARY_FILE.find()))
other.MKL_Set_Threading_Layer(SEQUENTIAL)
other.MKL_Get_Max_Threads()
try:
    load()
except BackendUnavailableError as error:
    print(error)
""")
    assert "threading layer 1, not on GNU OpenMP" in output


_COUNT_THREADS = """
import os
import numpy as np
from collage_core.target import Target
from collage_core.testing import check_group, make_group, node
from collage_mkl.backend import MklBackend

def tasks():
    return len(os.listdir("/proc/self/task"))

values = {{n: np.ones((3, 200, 200), np.float32) for n in "ab"}}
backend, before = MklBackend(), tasks()
for weights in (False, True):
    if weights:
        values = {{n: v[0] for n, v in values.items()}}
    inputs = dict(values)
    constants = {{"b": inputs.pop("b")}} if weights else {{}}
    group = make_group([node("MatMul", ["a", "b"], "y")], inputs, constants)
    assert len(check_group(backend, group, inputs, Target("cpu", {threads}))) == 1
files = {{l.split()[-1] for l in open("/proc/self/maps") if "/" in l}}
openmp = [os.path.basename(f) for f in files if "omp" in os.path.basename(f)]
assert len(openmp) == 1 and openmp[0].startswith("libgomp.so.1"), openmp
assert not any("tbb" in os.path.basename(f) for f in files)
print(tasks() - before)
"""


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OMP_NUM_THREADS": "5"},
        {"MKL_NUM_THREADS": "4"},
        {"MKL_THREADING_LAYER": "INTEL", "MKL_INTERFACE_LAYER": "ILP64"},
    ],
)
def test_the_threads_of_the_target_and_no_other(threads: int, variables: dict[str, str]) -> None:
    """On GNU OpenMP alone, as many as the target says (more than there are processors, too), whatever the
    environment says.
    """
    code = _COUNT_THREADS.format(threads=threads)
    assert int(_run(code, OPENBLAS_NUM_THREADS="1", **variables)) == threads - 1


def _kernel(threads: int) -> Kernel:
    """[40, 50] @ ones [50, 40]"""
    values = {"a": np.ones((40, 50), np.float32)}
    made = node("MatMul", ["a", "b"], ["y"])
    graph = make_graph([made], values, {"b": np.ones((50, 40), np.float32)})
    backend, subgraph, target = MklBackend(), Subgraph(graph, graph.all_nodes), Target("cpu", threads)
    variants = backend.variants(subgraph, target)
    assert isinstance(variants, list)
    return backend.build(subgraph, variants[0], target)


def _bound(kernel: Kernel, value: float = 1) -> tuple[Bound, Array]:
    """A call with `value` everywhere, and its output."""
    a, out = (empty(shape, plain("float32", shape)) for shape in ((40, 50), (40, 40)))
    a[...] = value
    return kernel.bind([a], [out], np.empty(0, np.uint8), IMMEDIATE), out


def test_a_call_runs_on_the_threads_that_its_kernel_was_built_for() -> None:
    """The calling thread may have been given another number since."""
    calls = [_bound(_kernel(threads)) for threads in (1, 2)]
    service = ctypes.PyDLL(str(LIBRARY_FILE.find()))
    for threads, (call, out) in ((1, calls[0]), (2, calls[1]), (1, calls[0])):
        service.MKL_Set_Num_Threads_Local(5)
        out[...] = np.nan
        assert not call()
        assert service.MKL_Get_Max_Threads() == threads
        assert (out == 50).all()
    with ThreadPoolExecutor(1) as other:
        assert not other.submit(calls[1][0]).result()
        assert other.submit(service.MKL_Get_Max_Threads).result() == 2
    assert service.MKL_Get_Max_Threads() == 1


def test_two_threads_may_call_one_kernel_at_once() -> None:
    kernel = _kernel(2)
    calls = [_bound(kernel, value) for value in (1, 2)]

    def many(index: int) -> int:
        call, out = calls[index]
        wrong = 0
        for _ in range(200):
            out[...] = np.nan
            call()
            wrong += int((out != 50 * (index + 1)).sum())
        return wrong

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(many, range(2))) == [0, 0]


def test_beside_another_library_on_the_same_threads() -> None:
    """oneDNN computes on the same pool: one runtime is loaded, and both keep their numbers of threads."""
    pytest.importorskip("collage_dnnl")
    output = _run(
        """
import os, onnx
import numpy as np
from collage_core.target import Target
from collage_core.devices import IMMEDIATE
from collage_core.formats import empty
from collage_core.ir import Subgraph, from_model
from collage_dnnl.backend import DnnlBackend
from collage_mkl.backend import MklBackend
value = onnx.helper.make_tensor_value_info
graph = onnx.helper.make_graph(
    [onnx.helper.make_node("MatMul", ["a", "b"], ["y"])], "test",
    [value(v, 1, (200, 200)) for v in "ab"], [value("y", 1, (200, 200))])
graph = from_model(onnx.helper.make_model(graph))
subgraph, target, calls = Subgraph(graph, graph.all_nodes), Target("cpu", 2), []
before = len(os.listdir("/proc/self/task"))
for backend in (DnnlBackend(), MklBackend()):
    variant = backend.variants(subgraph, target)[0]
    kernel = backend.build(subgraph, variant, target)
    arrays = [empty((200, 200), f) for f in (*variant.inputs, *variant.outputs)]
    for array in arrays:
        array[...] = np.eye(200)
    workspace = empty((kernel.workspace_bytes,), type(variant.inputs[0])("uint8", (0,)))
    calls.append((kernel.bind(arrays[:2], arrays[2:], workspace, IMMEDIATE), arrays[2]))
for _ in range(50):
    for call, out in calls:
        out[...] = np.nan
        assert not call()
        assert (out == np.eye(200)).all()
files = {l.split()[-1] for l in open("/proc/self/maps") if "/" in l}
assert sum("omp" in os.path.basename(f) for f in files) == 1, files
print(len(os.listdir("/proc/self/task")) - before)
""",
        OPENBLAS_NUM_THREADS="1",
    )
    assert int(output) == 1


def test_a_model_is_placed_and_run(tmp_path: Path) -> None:
    """Through `optimize`: measured in a worker, placed, built in this process, and right."""
    random = np.random.default_rng(0)
    x, w, v, c = (random.standard_normal(s).astype(np.float32) for s in ((64, 96), (96, 80), (40, 80), (40,)))
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="first"),
        node("Relu", ["p"], ["q"], name="relu"),
        node("Gemm", ["q", "v", "c"], ["y"], name="second", transB=1),
    ]
    result = optimize(
        make_graph(nodes, {"x": x}, {"w": w, "v": v, "c": c}),
        backends=["mkl"],
        target=Target("cpu", 2),
        registry=(registry := Registry([plugin], entry_points=False)),
        constraints=Constraints({"first": "mkl", "second": "mkl"}),
        costs=tmp_path / "costs.sqlite",
        inputs={"x": x},
        rounds=0,
    )
    by_node = {result.graph.node(i).name: g for g in result.placement.groups for i in g.nodes}
    assert [by_node[n].backend for n in ("first", "relu", "second")] == ["mkl", "reference", "mkl"]
    assert by_node["first"].cost_ms is not None
    executable = build(result.graph, result.placement, registry=registry)
    found = executable({"x": x})["y"]
    expected = np.maximum(x.astype(np.float64) @ w, 0) @ v.T + c
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
