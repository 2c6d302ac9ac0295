"""`collage optimize` as a user runs it: a real network, all that is installed, and nothing switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
from collage_benchmarks.networks import NETWORKS

from collage_core.plugins import default_registry

if TYPE_CHECKING:
    from collage_command import Collage

_TESTS_OWN = ("COLLAGE_SETTLING_LIMIT_S", "COLLAGE_CALIBRATION")
"""Set for the other tests."""


@pytest.mark.ci
@pytest.mark.alone
def test_a_network_is_optimized_run_and_explained(collage: Collage, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in _TESTS_OWN:
        monkeypatch.delenv(variable, raising=False)
    network = NETWORKS["squeezenet"]
    model, bundle = collage.folder / "squeezenet.onnx", collage.folder / "squeezenet.collage"
    proto = network.build()
    onnx.save(proto, model)

    # The time of `normal` ends before the comparisons where a machine is slow, or taken: then less is told.
    optimizing = ("optimize", model, "-o", bundle, "--budget", "6m")
    report = collage.json(*optimizing)
    assert report["search"]["measured"] > 0
    assert report["prediction"]["transitions"], "calibrated"
    nodes = [node for group in report["groups"] for node in group["nodes"]]
    assert len(nodes) == len(set(nodes)) > 50
    assert {s["backend"] for s in report["singles"]} >= {"dnnl", "onnxruntime", "openvino", "tvm"}
    assert {g["backend"] for g in report["groups"]} <= {*default_registry().backends, "view"}
    assert report["contenders"]["collage"]["median_ms"] > 0
    assert report["contenders"]["collage"]["sittings"] >= 3
    assert report["max_rel_error"] < 1e-4
    assert report["errors"] == []

    written = bundle.stat()
    again = collage.json(*optimizing)
    assert again["search"]["measured"] == 0
    left = bundle.stat()
    assert (left.st_ino, left.st_mtime_ns) == (written.st_ino, written.st_mtime_ns), "it is there already"
    assert again["groups"] == report["groups"]

    given = network.inputs()
    for name, array in given.items():
        np.save(collage.folder / f"{name}.npy", array)
    inputs = [part for name in given for part in ("--input", f"{name}={collage.folder}/{name}.npy")]
    names = [value.name for value in proto.graph.output]
    outputs = [part for name in names for part in ("--output", f"{name}={collage.folder}/out-{name}.npy")]
    collage.run("run", bundle, *inputs, *outputs)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for name, expected in zip(names, session.run(None, given), strict=True):
        found = np.load(collage.folder / f"out-{name}.npy")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())

    assert "groups in order" in collage.run("explain", bundle)
    explained = collage.json("explain", bundle)
    assert explained.pop("dataflow")
    assert explained == report
    assert "squeezenet" in collage.run("optimize", model)
    assert "no such file" in _said(collage, "run", collage.folder / "none.collage")
    assert "missing" in _said(collage, "run", bundle)


def _said(collage: Collage, *arguments: object) -> str:
    """The last line of a command that is refused: exit status 1, and no output."""
    process = collage.start(*map(str, arguments))
    out, err = process.communicate()
    assert (process.returncode, out) == (1, ""), err
    return err.splitlines()[-1]
