"""Networks over the processor and the simulated device answer alike, or say why they cannot run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from collage_simulator.device import SimQueue
from simulated_chain import CHAIN, ONLY_SIM, declare, devices_of, optimized

from collage_core import Bundle, build, load, save
from collage_core.errors import CollageError, PlacementError, StepError
from collage_core.onnx_backend import OnnxBackend
from collage_core.placement import Placement
from collage_core.plugins import ENTRY_POINT_GROUP, PLUGINS_VARIABLE, default_registry
from collage_core.reference import evaluate

if TYPE_CHECKING:
    from conftest import Parse

pytestmark = pytest.mark.ci


def test_it_answers_alike_and_waits_only_for_what_comes_back(parse: Parse, tmp_path: Path) -> None:
    found = optimized(parse(CHAIN), tmp_path, constraints=ONLY_SIM, rounds=2)
    assert found.comparison is not None
    record = found.comparison.records["collage"]
    assert record.ok
    assert record.error is not None
    assert record.error < 1e-4
    x = np.random.default_rng(1).standard_normal((64, 64), dtype=np.float32)
    right = evaluate(found.graph, {"x": x})["y"]
    executable = build(found.graph, found.placement)
    for _ in range(2):
        assert np.allclose(executable(x)["y"], right, rtol=1e-4, atol=1e-4)
    context = executable.context()
    assert (context.launches, context.waits) == (3, 1), "there, five kernels that were captured, and back"
    assert set(context.arena_bytes) == {"cpu", "sim"}
    context.inputs["x"][...] = x
    steps_ms = context.execute_timed()
    assert all(ms > 0 for ms in steps_ms)
    assert np.allclose(context.outputs["y"], right, rtol=1e-4, atol=1e-4)
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    assert np.allclose(load(tmp_path / "m.collage")(x)["y"], right, rtol=1e-4, atol=1e-4)


def test_contexts_in_several_threads(parse: Parse, tmp_path: Path) -> None:
    found = optimized(parse(CHAIN), tmp_path, constraints=ONLY_SIM)
    executable = build(found.graph, found.placement)
    given = [np.random.default_rng(i).standard_normal((64, 64), dtype=np.float32) for i in range(4)]
    right = [evaluate(found.graph, {"x": x})["y"] for x in given]

    def run(i: int) -> bool:
        context = executable.context()
        answers = [context(given[i])["y"] for _ in range(5)]
        return all(np.allclose(y, right[i], rtol=1e-3, atol=1e-3) for y in answers)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(4)))


def test_an_executable_survives_its_device(parse: Parse, tmp_path: Path) -> None:
    found = optimized(parse(CHAIN), tmp_path, constraints=ONLY_SIM)
    executable = build(found.graph, found.placement)
    x = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    before = executable(x)["y"]
    executable.devices["sim"]._host._process.kill()  # type: ignore[attr-defined]
    with pytest.raises(StepError, match="the simulated device's process died"):
        executable(x)
    assert np.array_equal(executable(x)["y"], before)
    context = executable.context()
    executable.devices["sim"]._host._process.kill()  # type: ignore[attr-defined]
    with pytest.raises(StepError, match="the simulated device's process died"):
        context.execute_timed()


@pytest.mark.parametrize("captures", ["nothing", "an error"])
def test_what_cannot_be_captured_is_called_one_by_one(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captures: str
) -> None:
    def capture(queue: SimQueue, calls: object) -> None:
        if captures == "an error":
            raise RuntimeError("no graphs today")

    found = optimized(parse(CHAIN), tmp_path, constraints=ONLY_SIM)
    x = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    right = build(found.graph, found.placement)(x)["y"]
    monkeypatch.setattr(SimQueue, "capture", capture)
    executable = build(found.graph, found.placement)
    assert executable.context().launches == 7
    assert np.array_equal(executable(x)["y"], right)


def test_a_bundle_that_uses_no_device_needs_none(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, transfer_us=5_000)
    found = optimized(parse(CHAIN), tmp_path)
    assert set(devices_of(found.placement)) == {"cpu"}
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    monkeypatch.delenv(PLUGINS_VARIABLE)
    default_registry.cache_clear()
    assert load(tmp_path / "m.collage")(np.ones((64, 64), np.float32))["y"].shape == (64, 64)


def test_a_bundle_says_of_which_device_it_is(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = optimized(parse(CHAIN), tmp_path, constraints=ONLY_SIM)
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    declare(monkeypatch, launch_us=7)
    with pytest.warns(UserWarning, match='measured with device sim .*"launch_us": 5.0.*here it is.*7.0'):
        load(tmp_path / "m.collage")


def test_a_placement_needs_the_device(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(p.value.startswith("collage_simulator") for p in entry_points(group=ENTRY_POINT_GROUP)):
        pytest.skip("it is installed, and found without being named")
    found = optimized(parse(CHAIN), tmp_path, backends=["sim"])
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    monkeypatch.delenv(PLUGINS_VARIABLE)
    default_registry.cache_clear()
    with pytest.raises(CollageError, match="sim"):
        load(tmp_path / "m.collage")


def test_a_view_brings_nothing_to_a_device(parse: Parse, tmp_path: Path) -> None:
    found = optimized(parse(CHAIN), tmp_path, constraints=ONLY_SIM)
    for i in range(2):
        data = found.placement.to_json()
        data["conversions"][i]["backend"] = "view"
        with pytest.raises(PlacementError, match="a view is to convert"):
            build(found.graph, Placement.from_json(data))


def test_what_lies_on_two_devices_is_no_group(parse: Parse, tmp_path: Path) -> None:
    found = optimized(parse(CHAIN), tmp_path, backends=["sim"])
    data = found.placement.to_json()
    data["groups"][0]["inputs"][0]["device"] = "cpu"
    with pytest.raises(PlacementError, match="memory of several devices"):
        build(found.graph, Placement.from_json(data))


@pytest.mark.ci
def test_an_onnx_backend_on_it_without_a_measurement(parse: Parse) -> None:
    model = parse("(float[4, 4] x) => (float[4, 4] y) { a = Relu(x) b = Abs(a) y = Erf(b) }")
    x = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)
    with closing(OnnxBackend.for_backends("sim", registry=default_registry())) as kind:
        placed = kind.prepare(model, threads=1, accelerators=("sim",))
        (y,) = placed.run([x])
        ((_, placement),) = placed.placements
        np.testing.assert_allclose(y, kind.prepare(model, threads=1).run([x])[0], rtol=1e-5)
        with pytest.raises(CollageError, match="accelerators is a tuple"):
            kind.prepare(model, accelerators="sim")  # type: ignore[arg-type]
    assert [g.backend for g in placement.groups] == ["sim", "sim", "reference"]
    assert [c.backend for c in placement.conversions] == ["transfer:sim", "transfer:sim"]
