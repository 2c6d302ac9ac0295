"""What is offered and declined, and what is told where nothing can run, without the library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from collage_tensorrt import editions, plugin
from collage_tensorrt.backend import TensorrtBackend
from collage_tensorrt.editions import EDITIONS, chosen, missing_reason
from collage_tensorrt.variants import variants

from collage_core.backend import BackendKind
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.plugins import Registry
from collage_core.target import Target
from collage_core.testing import make_group, node

_IMAGE = np.ones((1, 4, 8, 8), np.float32)
_WEIGHTS = np.ones((6, 4, 3, 3), np.float32)


def test_images_are_offered_in_both_orders(target: Target) -> None:
    group = make_group([node("Conv", ["x", "w"], "y")], {"x": _IMAGE}, {"w": _WEIGHTS})
    offered = variants(group, target)
    assert not isinstance(offered, Refusal)
    assert [[f.layout for f in v.inputs] for v in offered] == [[(0, 1, 2, 3)], [(0, 2, 3, 1)]]
    assert {v.device for v in offered} == {"cuda"}


def test_without_the_device_nothing_is_offered() -> None:
    group = make_group([node("Relu", ["x"], "y")], {"x": _IMAGE})
    assert str(variants(group, Target("cpu", 1))).startswith("device 'cuda' does not take part")


@pytest.mark.parametrize(
    ("nodes", "inputs", "reason"),
    [
        ([node("Relu", ["x"], "y")], {"x": np.ones(3)}, "'x' is float64[3]"),
        (
            [node("Cast", ["x"], "d", to=11), node("Cast", ["d"], "y", to=1)],
            {"x": np.ones(3, np.float32)},
            "'d' is float64[3]",
        ),
        ([node("Relu", ["x"], "y")], {"x": np.ones((1,) * 9, np.float32)}, "rank 9"),
        ([node("Relu", ["x"], "y")], {"x": np.ones((0, 3), np.float32)}, "0 elements"),
    ],
)
def test_what_is_declined(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Array], reason: str, target: Target
) -> None:
    refusal = variants(make_group(nodes, inputs), target)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_other_domains_and_quantised_weights_are_declined(target: Target) -> None:
    """The parser does not look at the domain."""
    x, w = np.ones((2, 3), np.float32), np.ones((3, 3), np.int8)
    graph = make_group([node("Relu", ["x"], "y")], {"x": x}).graph
    acme = graph.replace(nodes=tuple(replace(n, domain="com.acme") for n in graph.nodes))
    assert "com.acme.Relu" in str(variants(Subgraph(acme, acme.all_nodes), target))
    nodes = [node("DequantizeLinear", ["w", "s"], "d"), node("MatMul", ["x", "d"], "y")]
    group = make_group(nodes, {"x": x}, {"w": w, "s": np.float32(0.5)})
    assert isinstance(variants(group, target), Refusal)


def test_it_is_found_by_discovery() -> None:
    info = Registry([plugin], entry_points=False).backend("TensorRT").info()
    assert (info.name, info.kind, info.devices) == ("tensorrt", BackendKind.GRAPH, ("cuda",))


def test_what_is_missing_is_told() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    assert "no NVIDIA GPU" in (TensorrtBackend().info().reason or "")


def test_the_edition_follows_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT for RTX does not build for every GPU."""
    here: set[str] = set()
    gpu: dict[str, str] = {}
    monkeypatch.setattr(editions.Edition, "is_installed", property(lambda self: self.title in here))
    monkeypatch.setattr(editions, "missing", lambda modules, package: None)
    monkeypatch.setattr(editions, "facts", lambda: gpu)
    whole, rtx = EDITIONS
    for capability, installed, expected in (
        ("9.0", {whole.title, rtx.title}, whole),
        ("9.0", {rtx.title}, None),
        ("8.9", {rtx.title}, rtx),
        ("8.9", set(), None),
    ):
        here.clear()
        here.update(installed)
        gpu["compute_capability"] = capability
        assert chosen(capability) is expected
        if installed:
            assert (missing_reason() is None) == (expected is not None)
    here.add(rtx.title)
    gpu["compute_capability"] = "9.0"
    assert missing_reason() == "TensorRT for RTX does not build for compute capability 9.0"


def test_offering_loads_nothing() -> None:
    code = """
import sys
import numpy as np
from collage_core.target import Target
from collage_core.testing import make_group, node
from collage_tensorrt.backend import TensorrtBackend
backend, target = TensorrtBackend(), Target("cpu", 1, accelerators=("cuda",))
backend.info(), backend.environment(target)
assert backend.variants(make_group([node("Relu", ["x"], "y")], {"x": np.ones(3, np.float32)}), target)
assert not {"tensorrt", "tensorrt_rtx_bindings", "cuda.bindings", "collage_tensorrt.library"} & {*sys.modules}
assert "tensorrt" not in open("/proc/self/maps").read()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
