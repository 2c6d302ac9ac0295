"""A model that answers, and is optimised meanwhile: nothing is made up."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from collage_benchmarks.background_events import events_of, overlapping, requests_of
from collage_benchmarks.networks import NETWORKS
from onnx.reference import ReferenceEvaluator
from processes import children, wait_until

from collage_core import Background, Session, read
from collage_core.errors import CollageError
from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from tests.background.conftest import bundle_of


@pytest.mark.ci
def test_a_model_is_optimised_while_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage_core.background.tree._STOP_LIMIT_S", 30.0)  # however busy the machine is
    network, path = NETWORKS["tiny_conv"], tmp_path / "m.onnx"
    inputs, model = network.inputs(), network.build()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, path)
    expected = np.asarray(next(iter(ReferenceEvaluator(network.build()).run(None, dict(inputs)))))
    kept, log = tmp_path / "kept.collage", tmp_path / "log.jsonl"
    options = Background(
        effort="quick",
        backends=["dnnl", "tvm"],
        costs=tmp_path / "costs.sqlite",
        output=kept,
        log=log,
        shapes={name: x.shape for name, x in inputs.items()},
    )
    count = 0
    with Session(path, optimize=options) as session:
        while (state := session.optimization) is not None and state.state in ("running", "paused"):
            [y] = session.run(None, inputs)
            np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
            count += 1
            if count % 10 == 0:
                time.sleep(0.5)  # a pause, in which something is measured
        assert state is not None
        assert state.state == "finished", state.reason
        assert state.swaps >= 1
        session.run(None, inputs)
    events = events_of(log)
    assert len(requests_of(events)) == count + 1
    assert not overlapping(events)
    last = [e for e in events if e["event"] == "swap"][-1]
    assert read(kept).placement.digest == last["digest"]
    with Session(kept, optimize=replace(options, shapes=None)) as session:  # what was kept answers at once
        [y] = session.run(None, inputs)
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.ci
def test_a_bundle_stays_as_it_is_where_all_that_is_found_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is where the session is to keep what it finds."""
    monkeypatch.setattr("collage_core.background.answers.refusal", lambda *_: "made up")
    graph = normalise(from_model(NETWORKS["tiny_conv"].build()))
    path, _ = bundle_of(tmp_path, "m", graph, *((node.id,) for node in graph.nodes))
    before = path.read_bytes()
    costs = tmp_path / "costs.sqlite"
    options = Background(effort="quick", backends=["dnnl"], costs=costs, output=path)
    with Session(path, optimize=options) as session:
        assert wait_until(
            lambda: (s := session.optimization) is not None and s.state not in ("running", "paused")
        )
        state = session.optimization
        assert state is not None
        assert (state.state, state.reason, state.swaps) == ("finished", "made up", 0)
        assert session.get_providers() == ["reference"]
    assert path.read_bytes() == before


def test_a_model_that_is_none_leaves_nobody(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x0a")
    before = set(children(os.getpid()))
    with pytest.raises(CollageError, match=r"m\.onnx"):
        Session(path, optimize="background")
    assert wait_until(lambda: set(children(os.getpid())) <= before)
