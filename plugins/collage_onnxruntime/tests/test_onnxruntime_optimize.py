"""Networks placed on ONNX Runtime: asked and measured in workers, built in this process, and right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from collage_benchmarks.networks import NETWORKS
from collage_onnxruntime import plugin

from collage_core import build, optimize
from collage_core.placement import VIEW
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.target import Target

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("network", ["tiny_conv", "tiny_encoder", "mnist"])
def test_a_network_is_placed_and_run(network: str, tmp_path: Path) -> None:
    """Without end-to-end rounds: node by node, nothing is left to the reference."""
    registry = Registry([plugin], entry_points=False)
    inputs = NETWORKS[network].inputs(0)
    result = optimize(
        NETWORKS[network].build(),
        backends=["onnxruntime"],
        target=Target("cpu", 1),
        registry=registry,
        costs=tmp_path / "costs.sqlite",
        inputs=inputs,
        rounds=0,
    )
    used = {g.backend for g in result.placement.groups}
    assert "onnxruntime" in used
    assert used <= {"onnxruntime", VIEW}
    executable = build(result.graph, result.placement, registry=registry)
    for given in (inputs, NETWORKS[network].inputs(1)):
        expected = evaluate(result.graph, given)
        found = executable(given)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-4 * np.abs(array).max())


@pytest.mark.alone
def test_the_whole_network_is_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the end-to-end rounds the whole of it takes part, and costs less than its nodes one by one."""
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    result = optimize(
        NETWORKS["tiny_encoder"].build(),
        backends=["onnxruntime"],
        target=Target("cpu", 1),
        registry=Registry([plugin], entry_points=False),
        costs=tmp_path / "costs.sqlite",
        rounds=3,
    )
    (group,) = result.placement.groups
    assert group.backend == "onnxruntime"
    assert len(group.nodes) == len(result.graph.nodes)
