"""The backend as core sees it: discovery, buffers, refusals, threads, memory."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from collage_openvino import backend as module
from collage_openvino import plugin
from collage_openvino.backend import OpenvinoBackend
from collage_openvino.build import _check
from collage_openvino.library import load
from collage_openvino.settings import properties
from onnx import TensorProto
from openvino_groups import NOTHING, TARGET, f

from collage_core import placement
from collage_core.backend import BackendKind, Variant, plain_variant
from collage_core.devices import IMMEDIATE
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array, channels_last, empty, plain
from collage_core.ir import Subgraph
from collage_core.placement import Placement
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.runtime import build
from collage_core.target import Target
from collage_core.testing import make_group, node


def test_it_is_found_by_discovery() -> None:
    registry = Registry([plugin], entry_points=False)
    info = registry.backend("OpenVINO").info()
    assert (info.name, info.kind, info.available) == ("openvino", BackendKind.GRAPH, True)
    assert info.library_version == "2026.4.1"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_library", lambda: None)
    assert OpenvinoBackend().info().reason == "openvino is not installed"


def test_only_building_loads_the_library_and_nothing_its_python_package() -> None:
    code = """
import sys
from onnx import TensorProto, helper
from collage_core.backend import plain_variant
from collage_core.target import Target
from collage_core.ir import Subgraph, from_model
from collage_openvino import plugin
[backend], [peer] = plugin.collage_backends(), plugin.collage_peers()
x, o = (helper.make_tensor_value_info(v, TensorProto.FLOAT, [4, 5]) for v in "xo")
node = helper.make_node("Relu", ["x"], ["o"])
graph = from_model(helper.make_model(helper.make_graph([node], "g", [x], [o])))
group, target = Subgraph(graph, graph.all_nodes), Target("cpu", 2)
assert backend.info().available and peer.info().available and backend.variants(group, target)
assert backend.environment_beside(target) == {"GOMP_SPINCOUNT": "1000"}
assert "libopenvino" not in open("/proc/self/maps").read()
backend.build(group, plain_variant(group), target)
assert "libopenvino" in open("/proc/self/maps").read()
assert not [m for m in sys.modules if m.startswith("openvino")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def _residual(channels: int = 8) -> tuple[list[Any], dict[str, Array], dict[str, Array]]:
    """x -> Conv -> BatchNormalization -> Add(., x) -> Relu, whose sum is an output as well."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Add", ["n", "x"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("GlobalAveragePool", ["r"], ["g"]),
    ]
    constants = {
        "w": f(channels, channels, 3, 3) / 9,
        **{name: np.abs(f(channels)) + 1 for name in "sbmv"},
    }
    return nodes, {"x": f(1, channels, 9, 7)}, constants


def test_groups_with_several_outputs_in_both_layouts(check: Callable[..., list[Variant]]) -> None:
    nodes, inputs, constants = _residual()
    variants = check(nodes, inputs, ("a", "r", "g"), constants)
    shape = (1, 8, 9, 7)
    assert [v.inputs for v in variants] == [(plain("float32", shape),), (channels_last("float32", shape),)]
    assert variants[1].outputs[:2] == (channels_last("float32", shape),) * 2


def test_attention_with_shared_constants(check: Callable[..., list[Variant]]) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["q"]),
        node("MatMul", ["y", "w"], ["k"]),
        node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Mul", ["s", "scale"], ["d"]),
        node("Softmax", ["d"], ["p"], axis=-1),
        node("MatMul", ["p", "y"], ["o"]),
    ]
    constants = {"w": f(64, 64) / 8, "scale": np.float32(0.125)}
    variants = check(nodes, {"x": f(2, 17, 64), "y": f(2, 33, 64)}, ("o", "p"), constants)
    assert len(variants) == 1


def test_elementwise_groups_next_to_images_are_offered_channels_last() -> None:
    nodes, inputs, constants = _residual()
    graph = make_group(nodes, inputs, constants, ["g"]).graph
    alone = Subgraph(graph, [n.id for n in graph.nodes if n.op_type in ("Add", "Relu")])
    variants = OpenvinoBackend().variants(alone, TARGET)
    assert not isinstance(variants, Refusal)
    assert len(variants) == 2


def _built(group: Subgraph, target: Target = TARGET) -> Any:
    return OpenvinoBackend().build(group, plain_variant(group), target)


def test_binds_of_one_kernel_run_interleaved() -> None:
    nodes, inputs, constants = _residual()
    subgraph = make_group(nodes, inputs, constants, ["a", "g"])
    kernel, bounds = _built(subgraph), []
    for k in range(3):
        x = empty((1, 8, 9, 7), plain("float32", (1, 8, 9, 7)))
        x[...] = np.roll(inputs["x"], k)
        a, g = np.empty((1, 8, 9, 7), np.float32), np.empty((1, 8, 1, 1), np.float32)
        bounds.append((kernel.bind([x], [a, g], NOTHING, IMMEDIATE), x, a, g))
    del kernel
    for _ in range(2):
        for bound, *_arrays in bounds:
            assert not bound()
    for _, x, a, g in bounds:
        expected = evaluate(subgraph.graph, {"x": x})
        np.testing.assert_allclose(a, expected["a"], atol=1e-5)
        np.testing.assert_allclose(g, expected["g"], atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_contexts_of_several_python_threads(threads: int) -> None:
    nodes, inputs, constants = _residual()
    kernel = _built(make_group(nodes, inputs, constants, ["g"]), Target("cpu", threads))

    def context(scale: float) -> tuple[Any, Array, Array]:
        x, g = inputs["x"] * np.float32(scale), np.empty((1, 8, 1, 1), np.float32)
        return kernel.bind([x], [g], NOTHING, IMMEDIATE), x, g

    contexts = [context(k + 1.0) for k in range(4)]
    expected = []
    for call, _, g in contexts:
        assert not call()
        expected.append(g.copy())

    def run(k: int) -> None:
        call, _, g = contexts[k]
        for _ in range(200):
            g[...] = np.nan
            assert not call()
            np.testing.assert_array_equal(g, expected[k])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


def test_arrays_are_read_and_written_in_place() -> None:
    subgraph = make_group([node("Neg", ["x"], ["o"])], {"x": f(64)})
    x, o = np.zeros(64, np.float32), np.zeros(64, np.float32)
    bound = _built(subgraph).bind([x], [o], NOTHING, IMMEDIATE)
    tensors = bound.__self__.tensors
    assert [t.array.ctypes.data for t in tensors] == [x.ctypes.data, o.ctypes.data]
    for value in (1.0, 2.0):
        x[...] = value
        assert not bound()
        assert (o == -value).all()


def test_what_fails_when_it_runs_names_the_step() -> None:
    x, indices = f(3, 4), np.array([[0], [2]])
    made = node("ScatterND", ["x", "i", "u"], ["o"])
    subgraph = make_group([made], {"x": x, "i": indices}, constants={"u": f(2, 4)})
    placed = placement.Group("openvino", (0,), plain_variant(subgraph))
    registry = Registry([plugin], entry_points=False)
    executable = build(subgraph.graph, Placement((placed,), (), TARGET), registry)
    expected = evaluate(subgraph.graph, {"x": x, "i": indices})["o"]
    np.testing.assert_array_equal(executable([x, indices])["o"], expected)
    with pytest.raises(BackendError, match=r"step openvino: nodes 0 failed: OpenVINO: .*ScatterND"):
        executable([x, indices + 1])


def test_large_constants_outlive_their_file() -> None:
    w = f(300, 200)
    subgraph = make_group([node("MatMul", ["x", "w"], ["o"])], {"x": f(5, 300)}, constants={"w": w})
    kernel = _built(subgraph)
    x, o = f(5, 300), np.empty((5, 200), np.float32)
    assert not kernel.bind([x], [o], NOTHING, IMMEDIATE)()
    np.testing.assert_allclose(o, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("made", "inputs", "reason"),
    [
        (
            node("Det", ["x"], ["o"]),
            {"x": f(3, 3)},
            "No conversion rule found for operations: Det",
        ),
        (
            node("GRU", ["x", "w", "r"], ["", "o"], hidden_size=6, layout=1),
            {"x": f(3, 1, 2), "w": f(1, 18, 2), "r": f(1, 18, 6)},
            "takes output 'o' for float32[1, 1, 6], which is float32[3, 1, 6]",
        ),
        (node("Dropout", ["x"], ["o"]), {"x": f(3, 3)}, "computes nothing between"),
        (node("Add", ["x", "x"], ["o"]), {"x": np.ones((2, 2))}, "'x' is float64"),
        (node("Add", ["x", "x"], ["o"]), {"x": np.ones((0, 2), np.float32)}, "no elements"),
    ],
)
def test_refusals_carry_reason_and_node(made: Any, inputs: dict[str, Array], reason: str) -> None:
    made.name = "culprit"
    good = make_group([node("Relu", ["x"], ["o"])], {"x": f(3)})
    first, refusal, last = OpenvinoBackend().supported([good, make_group([made], inputs), good], TARGET)
    assert first is last is None
    assert refusal is not None
    assert refusal.node == "culprit"
    assert reason in refusal.reason


def test_variants_refuse_what_cannot_cross_the_border() -> None:
    answer = OpenvinoBackend().variants(
        make_group([node("Cast", ["x"], ["o"], to=TensorProto.DOUBLE)], {"x": f(3)}), TARGET
    )
    assert isinstance(answer, Refusal)
    assert answer.reason == "'o' is float64[3]; OpenVINO is given bool, float32, int8, int32, int64, uint8"


_WORK = """
import os, time
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from collage_core.backend import plain_variant
from collage_core.target import Target
from collage_core.devices import IMMEDIATE
from collage_core.ir import Subgraph, from_model
from collage_openvino.backend import OpenvinoBackend
x, o = (helper.make_tensor_value_info(v, TensorProto.FLOAT, [1, 64, 64, 64]) for v in "xo")
w = numpy_helper.from_array(np.full((64, 64, 3, 3), 0.01, np.float32), "w")
node = helper.make_node("Conv", ["x", "w"], ["o"], pads=[1] * 4)
graph = from_model(helper.make_model(helper.make_graph([node], "g", [x], [o], [w])))
group, affinity = Subgraph(graph, graph.all_nodes), os.sched_getaffinity(0)
kernel = OpenvinoBackend().build(group, plain_variant(group), Target("cpu", {threads}))
arrays = [np.ones((1, 64, 64, 64), np.float32) for _ in range(2)]
call = kernel.bind(arrays[:1], arrays[1:], np.empty(0, np.uint8), IMMEDIATE)
def busy():
    times = {{}}
    for task in os.listdir("/proc/self/task"):
        times[task] = int(open(f"/proc/self/task/{{task}}/schedstat").read().split()[0])
    return times
before = busy()
start = time.perf_counter()
while time.perf_counter() - start < 0.5:
    assert not call()
spent = busy()
working = [t for t in spent if spent[t] - before.get(t, 0) > 20e6]
assert len(working) == {threads}, spent
assert os.sched_getaffinity(0) == affinity
start = time.process_time()
time.sleep(0.2)
assert time.process_time() - start < 0.02, "threads spin"
"""


@pytest.mark.alone
@pytest.mark.parametrize("threads", [1, 2])
def test_exactly_the_targets_threads_work_and_rest_afterwards(threads: int) -> None:
    if threads > len(os.sched_getaffinity(0)):
        pytest.skip("the machine has fewer processors")
    subprocess.run([sys.executable, "-c", _WORK.format(threads=threads)], check=True)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_dropped_kernels_free_their_memory_and_threads() -> None:
    w = f(1024, 1024)
    subgraph = make_group([node("MatMul", ["x", "w"], ["o"])], {"x": f(64, 1024)}, constants={"w": w})
    x, o = f(64, 1024), np.empty((64, 1024), np.float32)

    def run() -> None:
        assert not _built(subgraph).bind([x], [o], NOTHING, IMMEDIATE)()

    for _ in range(3):
        run()
    before, threads = _resident_bytes(), len(os.listdir("/proc/self/task"))
    for _ in range(20):
        run()
    assert _resident_bytes() - before < 4 * w.nbytes
    assert len(os.listdir("/proc/self/task")) <= threads


def test_another_number_of_ports_is_an_error() -> None:
    subgraph = make_group([node("Neg", ["x"], ["o"])], {"x": f(64)})
    values = [(subgraph, "x", plain("float32", (64,)))]
    with pytest.raises(BackendError, match="model has 0 inputs; the group has 1"):
        _check("input", values, [])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_library_takes_the_settings(threads: int) -> None:
    subgraph = make_group([node("Neg", ["x"], ["o"])], {"x": f(64)})
    model = _built(subgraph, Target("cpu", threads))._model
    asked = dict(properties(threads))
    asked.pop("LP_TRANSFORMS_MODE", None)  # it is taken, but not told
    for key, value in asked.items():
        text = ctypes.c_char_p()
        load().call("ov_compiled_model_get_property", model, key.encode(), ctypes.byref(text))
        said = (text.value or b"").decode()
        load().free_text(text)
        assert said == value, key


def test_the_library_speaks_of_what_it_cannot_read(tmp_path: Any) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(Exception, match=r"OpenVINO: .*broken\.onnx"):
        load().compiled(path, {})
