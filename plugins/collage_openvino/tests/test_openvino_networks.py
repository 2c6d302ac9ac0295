"""Networks placed on OpenVINO: asked and measured in workers, built in this process, and right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from collage_benchmarks.networks import NETWORKS
from collage_openvino import plugin
from collage_openvino.backend import OpenvinoBackend

from collage_core import Bundle, load, normalise, optimize, save
from collage_core.backend import plain_variant
from collage_core.ir import Subgraph, from_model
from collage_core.placement import VIEW
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.target import Target
from collage_core.testing import check_group

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("network", ["tiny_conv", "tiny_encoder", "mnist"])
def test_a_network_is_placed_saved_and_run(network: str, tmp_path: Path) -> None:
    registry = Registry([plugin], entry_points=False)
    result = optimize(
        NETWORKS[network].build(),
        backends=["openvino"],
        target=Target("cpu", 2),
        registry=registry,
        costs=tmp_path / "costs.sqlite",
        inputs=NETWORKS[network].inputs(0),
        rounds=0,
    )
    used = {g.backend for g in result.placement.groups}
    assert "openvino" in used
    assert used <= {"openvino", VIEW}
    save(Bundle(result.graph, result.placement), tmp_path / "model.collage")
    executable = load(tmp_path / "model.collage", registry=registry)
    for seed in (0, 1):
        inputs = NETWORKS[network].inputs(seed)
        found = executable(inputs)
        for name, expected in evaluate(result.graph, inputs).items():
            np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("network", ["tiny_conv", "tiny_encoder", "mnist", "mobilenet_v2"])
def test_a_whole_network_is_one_kernel(network: str) -> None:
    backend, target = OpenvinoBackend(), Target("cpu", 2)
    graph = normalise(from_model(NETWORKS[network].build()))
    group = Subgraph(graph, graph.all_nodes)
    variants = check_group(backend, group, NETWORKS[network].inputs(0), target, repeatable=False)
    assert next(iter(variants)) == plain_variant(group)
