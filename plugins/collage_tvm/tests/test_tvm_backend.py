"""The backend as core sees it: discovery, information, buffers, conversions."""

from __future__ import annotations

import ctypes.util
import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from collage_tvm import backend, plugin
from collage_tvm.backend import TvmBackend

from collage_core.backend import BackendKind, Kernel, plain_variant
from collage_core.devices import IMMEDIATE
from collage_core.formats import Format, empty, plain
from collage_core.ir import TensorType
from collage_core.plugins import Registry
from collage_core.target import Target
from collage_core.testing import make_group, node

NOTHING = np.empty(0, np.uint8)


def test_plugin_brings_the_backend() -> None:
    registry = Registry([plugin], entry_points=False)
    info = registry.backend("TVM").info()
    assert (info.name, info.kind, info.available) == ("tvm", BackendKind.OPERATOR, True)
    assert info.library_version == "0.27.0"


def test_nothing_but_building_loads_tvm() -> None:
    code = """
import sys
from onnx import TensorProto, helper
from collage_core.target import Target
from collage_core.ir import Subgraph
from collage_core.ir import from_model
from collage_core.rules import generate
from collage_tvm.plugin import collage_backends
tvm, _ = collage_backends()
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5])
o = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4, 5])
node = helper.make_node("Softmax", ["x"], ["o"])
graph = from_model(helper.make_model(helper.make_graph([node], "g", [x], [o])))
target = Target("cpu", 2)
assert tvm.info().available and tvm.environment(target)["OMP_DYNAMIC"] == "false"
assert generate(graph, tvm.rules()).groups and tvm.variants(Subgraph(graph, graph.all_nodes), target)
assert not [m for m in sys.modules if m == "tvm" or m.startswith("tvm.") or m == "tvm_ffi"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({"apache-tvm": None, "apache-tvm-ffi": None}, "apache-tvm is not installed"),
        ({"apache-tvm": "0.27.0", "apache-tvm-ffi": None}, "apache-tvm-ffi is not installed"),
        ({"apache-tvm": "0.27.0", "apache-tvm-ffi": "0.1.15.2"}, "crashes with apache-tvm-ffi 0.1.15.2"),
        ({"apache-tvm": "0.20.0", "apache-tvm-ffi": "0.1.14"}, "interface differs"),
    ],
)
def test_unusable_versions_are_named(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None], reason: str
) -> None:
    monkeypatch.setattr(backend, "installed_version", lambda package: versions.get(package, "0"))
    info = TvmBackend().info()
    assert not info.available
    assert reason in str(info.reason)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("libgomp.so.1: cannot open shared object file: No such file or directory", "is not installed"),
        ("libgomp.so.1: cannot open shared object file: Too many open files", "Too many open files"),
        (None, None),
    ],
)
def test_why_openmp_is_not_there_is_what_the_loader_says(
    monkeypatch: pytest.MonkeyPatch, said: str | None, reason: str | None
) -> None:
    def load(name: str) -> None:
        if said is not None:
            raise OSError(said)

    def not_found(name: str) -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(ctypes, "CDLL", load)
    for answer in (lambda name: None, not_found):
        monkeypatch.setattr(ctypes.util, "find_library", answer)
        monkeypatch.setattr(backend, "_OPENMP_FOUND", [])
        found = TvmBackend().info().reason
        assert found is None if reason is None else reason in str(found)


def _kernel(nodes: list[Any], inputs: dict[str, Any]) -> Kernel:
    group = make_group(nodes, inputs)
    return TvmBackend().build(group, plain_variant(group), Target("cpu", 2))


def test_bound_call_reads_what_its_buffers_hold_now() -> None:
    x, o = (empty((40, 50), plain("float32", (40, 50))) for _ in range(2))
    kernel = _kernel([node("Neg", ["x"], ["o"])], {"x": x})
    bound = kernel.bind([x], [o], NOTHING, IMMEDIATE)
    for value in (1.0, 2.0):
        x[...] = value
        assert not bound()
        assert (o == -value).all()


def test_output_may_take_the_place_of_an_input() -> None:
    shape = (300, 401)
    x, y = empty(shape, plain("float32", shape)), empty((401,), plain("float32", (401,)))
    x[...], y[...] = np.random.default_rng(0).standard_normal(shape), 2.0
    nodes = [node("Add", ["x", "y"], ["a"]), node("Mul", ["a", "x"], ["o"])]
    kernel = _kernel(nodes, {"x": x, "y": y})
    assert kernel.may_alias == {0: 0}
    expected = (x + y) * x
    kernel.bind([x, y], [x], NOTHING, IMMEDIATE)()
    np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_movers_do_not_offer_the_place_of_their_input() -> None:
    x = np.zeros((5, 5), np.float32)
    kernel = _kernel([node("Transpose", ["x"], ["o"])], {"x": x})
    assert kernel.may_alias == {}


def test_buffers_need_not_be_aligned_to_vectors() -> None:
    """The final executable aligns what it plans; what a caller binds by hand may lie anywhere."""
    x, o = _unaligned(64), _unaligned(64)
    x[...] = np.arange(64)
    kernel = _kernel([node("Neg", ["x"], ["o"])], {"x": x})
    assert not kernel.bind([x], [o], NOTHING, IMMEDIATE)()
    np.testing.assert_array_equal(o, -x)


def test_a_buffer_of_another_layout_is_an_error() -> None:
    x = empty((8, 9), plain("float32", (8, 9)))
    kernel = _kernel([node("Neg", ["x"], ["o"])], {"x": x})
    with pytest.raises(ValueError, match="not dense in layout"):
        kernel.bind([x], [empty((9, 8), plain("float32", (9, 8))).T], NOTHING, IMMEDIATE)


def _unaligned(count: int) -> Any:
    raw = empty((count + 16,), plain("float32", (count + 16,)))
    return raw[1 : count + 1]


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(2, 5, 7), (1, 37, 16, 33), (130, 90)])
def test_every_layout_converts_into_every_other(dtype: str, shape: tuple[int, ...]) -> None:
    tvm, target, type = TvmBackend(), Target("cpu", 2), TensorType(dtype, shape)
    layouts = list(itertools.permutations(range(len(shape))))
    pairs = [(layouts[0], o) for o in layouts[1:]] + [(o, layouts[0]) for o in layouts[1:]]
    for a, b in pairs[:12]:
        source, destination = Format.of(dtype, shape, a), Format.of(dtype, shape, b)
        assert tvm.converts(type, source, destination, target)
        x, o = empty(shape, source), empty(shape, destination)
        x[...] = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape)
        assert not tvm.build_conversion(type, source, destination, target).bind(
            [x], [o], NOTHING, IMMEDIATE
        )()
        np.testing.assert_array_equal(o, x)


def test_another_dtype_is_not_converted() -> None:
    type = TensorType("float32", (2, 3))
    source, destination = plain("float32", (2, 3)), plain("float16", (2, 3))
    assert not TvmBackend().converts(type, source, destination, Target("cpu", 1))
