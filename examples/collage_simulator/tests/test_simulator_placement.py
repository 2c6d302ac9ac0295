"""Networks over the processor and the simulated device: they go where arithmetic says, and answer alike."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from collage_simulator.costs import VARIABLE
from collage_simulator.device import SimQueue

from collage_core import Bundle, Constraints, Optimization, Target, build, load, optimize, save
from collage_core.errors import CollageError, PlacementError, StepError
from collage_core.measuring.progress import Silent
from collage_core.onnx_backend import OnnxBackend
from collage_core.pipeline.effort import NORMAL, THOROUGH
from collage_core.placement import Placement
from collage_core.plugins import PLUGINS_VARIABLE, Registry, default_registry
from collage_core.reference import evaluate
from collage_core.report.summary import optimization_json

if TYPE_CHECKING:
    from conftest import Parse

_TARGET = Target("cpu", 1, (), ("sim",))
_ONLY_SIM = Constraints(excluded=[("reference", None), ("dnnl", None)])
_FREE = {"launch_us": 0.1, "transfer_us": 0.1, "link_bytes_per_us": 1e9, "memory_bytes_per_us": 1e9}
_CHAIN = """(float[64,64] x) => (float[64,64] y) {
    [n] a = Neg(x) [m] b = MatMul(a, a) [t] c = Tanh(b) [k] d = MatMul(c, c) [r] y = Relu(d) }"""


pytestmark = pytest.mark.ci


def _declare(monkeypatch: pytest.MonkeyPatch, **costs: float) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(costs))


def _optimize(model: Any, costs: Path, **options: Any) -> Optimization:
    given: dict[str, Any] = {
        "backends": ["sim", "dnnl", "reference"],
        "target": _TARGET,
        "effort": THOROUGH,
        "rounds": 0,
    }
    return optimize(model, costs=costs / "c.sqlite", **(given | options))


def _devices(placement: Placement) -> list[str]:
    return [g.variant.outputs[0].device for g in placement.groups]


@pytest.mark.parametrize(
    ("costs", "devices"),
    [
        # A device that costs nothing gets it all, and one that can hardly be reached nothing.
        (_FREE, {"sim": 5}),
        ({"transfer_us": 5_000}, {"cpu": 5}),
        # Products that take for ever: elementwise operators between them are not worth the way.
        ({"operations_per_us": 100.0}, {"cpu": 5}),
    ],
)
def test_it_goes_where_arithmetic_says(
    parse: Parse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    costs: dict[str, float],
    devices: Mapping[str, int],
) -> None:
    _declare(monkeypatch, **costs)
    found = _optimize(parse(_CHAIN), tmp_path)
    assert (
        Counter(
            d for g, d in zip(found.placement.groups, _devices(found.placement), strict=True) for _ in g.nodes
        )
        == devices
    )
    told = optimization_json(found, "m.onnx")
    assert [g["device"] for g in told["groups"]] == _devices(found.placement)
    moved = len(told["transfers"])
    assert moved == (2 if "sim" in devices else 0)
    assert all(t["bytes"] == 4 * 64 * 64 and t["cost_ms"] > 0 for t in told["transfers"])


def test_the_border_moves_with_the_cost_of_the_way(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three operators that only NumPy offers beside the device."""
    model = parse("(float[64,64] x) => (float[64,64] y) { [e] a = Exp(x) [s] b = Sqrt(a) [l] y = Log(b) }")
    shares = []
    for transfer_us in (0.1, 1000.0):
        _declare(monkeypatch, launch_us=0.1, transfer_us=transfer_us)
        found = _optimize(model, tmp_path, backends=["sim", "reference"])
        shares.append(_devices(found.placement).count("sim"))
    assert shares[0] == 3 > shares[1]


def test_each_runs_what_it_is_good_at(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product takes 0.26 ms there, and NumPy a tenth of that; the rest takes 2 us there. Once products take
    nothing either, the border moves to the model's ends.
    """
    x = np.random.default_rng(1).standard_normal((64, 64), dtype=np.float32)
    waited = []
    synchronize = SimQueue.synchronize

    def counted(queue: SimQueue) -> None:
        waited.append(queue)
        synchronize(queue)

    model = parse(_CHAIN)
    for operations_per_us, devices, waits in (
        (2000.0, ["sim", "cpu", "sim", "cpu", "sim"], 3),
        (1e9, ["sim"] * 5, 1),
    ):
        _declare(monkeypatch, **{**_FREE, "operations_per_us": operations_per_us})
        folder = tmp_path / str(waits)
        folder.mkdir()
        found = _optimize(model, folder, backends=["sim", "reference"], rounds=2)
        mix = found.mix
        assert _devices(mix) == devices
        transfers = [c for c in mix.conversions if c.backend == "transfer:sim"]
        assert len(transfers) == 2 * waits
        context = build(found.graph, mix).context()
        assert context.waits == waits
        context.inputs["x"][...] = x
        with monkeypatch.context() as patch:
            patch.setattr(SimQueue, "synchronize", counted)
            waited.clear()
            counting = build(found.graph, mix).context()
            counting.inputs["x"][...] = x
            waited.clear()
            counting.execute()
            assert len(waited) == waits, "the host waits for what comes back, and for nothing else"
        context.execute()
        right = evaluate(found.graph, {"x": x})["y"]
        for outputs in (context.outputs, counting.outputs):
            assert np.allclose(outputs["y"], right, rtol=1e-4, atol=1e-4)


def test_groups_and_crossings_are_calibrated_with_the_device(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everywhere else here that is switched off."""
    monkeypatch.delenv("COLLAGE_CALIBRATION")
    _declare(monkeypatch, **_FREE)
    told: list[str] = []
    progress = Silent()
    monkeypatch.setattr(progress, "note", told.append)
    found = _optimize(parse(_CHAIN), tmp_path, rounds=2, progress=progress)
    assert not [line for line in told if "calibrat" in line or "failed" in line], told
    assert found.costs.transitions.group_ms.keys() >= {"sim", "dnnl"}
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok
    again = _optimize(parse(_CHAIN), tmp_path, rounds=2)
    assert not again.costs.measured


def test_what_the_device_computes_in_halves_only_is_rounded_on_the_host(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What crosses is not changed, and nobody changes it there: it goes by way of the host's halves."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "simulator_halves")
    default_registry.cache_clear()
    _declare(monkeypatch, **_FREE)
    excluded = Constraints(excluded=[("reference", op) for op in ("Neg", "MatMul", "Tanh", "Relu")])
    found = _optimize(
        parse(_CHAIN),
        tmp_path,
        backends=["sim", "reference"],
        constraints=excluded,
        target=Target("cpu", 1, ("float16",), ("sim",)),
    )
    assert set(_devices(found.placement)) == {"sim"}
    ways = [(c.source.dtype, c.destination.dtype, c.backend) for c in found.placement.conversions]
    assert ways == [
        ("float32", "float16", "reference"),
        ("float16", "float16", "transfer:sim"),
        ("float16", "float16", "transfer:sim"),
        ("float16", "float32", "reference"),
    ]
    x = np.random.default_rng(1).standard_normal((64, 64), dtype=np.float32) / 8
    right = evaluate(found.graph, {"x": x})["y"]
    assert np.allclose(build(found.graph, found.placement)(x)["y"], right, atol=1e-2 * np.abs(right).max())


def test_nobody_is_asked_to_convert_where_he_does_not_run(parse: Parse, tmp_path: Path) -> None:
    target = Target("cpu", 1, ("float16",), ("sim",))
    found = _optimize(parse(_CHAIN), tmp_path, target=target)
    asked = {
        (backend, source.device, destination.device)
        for (_, source, destination), records in found.costs.conversion_records.items()
        for backend in records
    }
    assert {"sim", "reference", "transfer:sim"} <= {backend for backend, *_ in asked}
    for backend, *devices in asked:
        expected = {"sim": {"sim"}, "transfer:sim": {"cpu", "sim"}}.get(backend, {"cpu"})
        assert set(devices) == expected, backend


def test_transfers_are_priced_as_they_are_declared(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _declare(monkeypatch, launch_us=1, transfer_us=3, link_bytes_per_us=1000, memory_bytes_per_us=1e9)
    found = _optimize(parse(_CHAIN), tmp_path, backends=["sim"])
    assert {c.backend for c in found.placement.conversions} == {"transfer:sim"}
    for c in found.placement.conversions:
        assert c.cost_ms == pytest.approx((3 + 4 * 64 * 64 / 1000) / 1e3, rel=1e-6)


def test_it_answers_alike_and_waits_only_for_what_comes_back(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse(_CHAIN), tmp_path, constraints=_ONLY_SIM, rounds=2)
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


def test_a_second_call_measures_nothing(parse: Parse, tmp_path: Path) -> None:
    assert _optimize(parse(_CHAIN), tmp_path).costs.measured
    assert not _optimize(parse(_CHAIN), tmp_path).costs.measured


def test_another_device_is_compared_anew(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same placement, but what it took was taken on a device with other costs."""
    measured = []
    for launch_us in (5.0, 5.0, 6.0):
        _declare(monkeypatch, launch_us=launch_us)
        found = _optimize(parse(_CHAIN), tmp_path, constraints=_ONLY_SIM, rounds=2)
        measured.append(any(c.measured for c in found.comparisons))
    assert measured == [True, False, True]


def test_contexts_in_several_threads(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse(_CHAIN), tmp_path, constraints=_ONLY_SIM)
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
    found = _optimize(parse(_CHAIN), tmp_path, constraints=_ONLY_SIM)
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

    found = _optimize(parse(_CHAIN), tmp_path, constraints=_ONLY_SIM)
    x = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    right = build(found.graph, found.placement)(x)["y"]
    monkeypatch.setattr(SimQueue, "capture", capture)
    executable = build(found.graph, found.placement)
    assert executable.context().launches == 7
    assert np.array_equal(executable(x)["y"], right)


def test_a_bundle_that_uses_no_device_needs_none(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _declare(monkeypatch, transfer_us=5_000)
    found = _optimize(parse(_CHAIN), tmp_path)
    assert set(_devices(found.placement)) == {"cpu"}
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    monkeypatch.delenv(PLUGINS_VARIABLE)
    default_registry.cache_clear()
    assert load(tmp_path / "m.collage")(np.ones((64, 64), np.float32))["y"].shape == (64, 64)


def test_a_bundle_says_of_which_device_it_is(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _optimize(parse(_CHAIN), tmp_path, constraints=_ONLY_SIM)
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    _declare(monkeypatch, launch_us=7)
    with pytest.warns(UserWarning, match='measured with device sim .*"launch_us": 5.0.*here it is.*7.0'):
        load(tmp_path / "m.collage")


def test_a_registry_of_ones_own(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed, and nobody names the plugin."""
    monkeypatch.delenv(PLUGINS_VARIABLE)
    default_registry.cache_clear()
    registry = Registry([importlib.import_module("collage_simulator.plugin")])
    found = _optimize(parse(_CHAIN), tmp_path, registry=registry, constraints=_ONLY_SIM, rounds=2)
    assert set(_devices(found.placement)) == {"sim"}
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok


def test_costs_of_the_processor_serve_with_and_without_the_device(parse: Parse, tmp_path: Path) -> None:
    _optimize(parse(_CHAIN), tmp_path, target=Target("cpu", 1), backends=["dnnl", "reference"])
    found = _optimize(parse(_CHAIN), tmp_path, backends=["dnnl", "reference"])
    assert not found.costs.measured


def test_halves_on_the_device(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its memory is what takes time, values lie there as halves, and become that before they come: the
    processor takes less for it.
    """
    _declare(monkeypatch, launch_us=0.1, transfer_us=0.1, memory_bytes_per_us=200)
    target = Target("cpu", 1, ("float16",), ("sim",))
    ops = "a = Tanh(x) b = Neg(a) c = Abs(b) d = Relu(c) y = Sigmoid(d)"
    chain = f"(float[64,64] x) => (float[64,64] y) {{ {ops} }}"
    found = _optimize(parse(chain), tmp_path, constraints=_ONLY_SIM, target=target, rounds=2)
    stored = Counter(f.dtype for g in found.placement.groups for f in g.variant.outputs)
    assert stored["float16"] >= 3
    ways = Counter(c.backend for c in found.placement.conversions)
    assert ways == {"reference": 2, "transfer:sim": 2}
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok


def test_bounds_rule_nothing_out_that_the_device_could_do_faster(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this processor could reach at most says nothing of another."""
    _declare(monkeypatch, launch_us=0.01, transfer_us=0.01, link_bytes_per_us=1e9, memory_bytes_per_us=1e9)
    full = _optimize(parse(_CHAIN), tmp_path).placement
    (tmp_path / "bounded").mkdir()
    bounded = _optimize(parse(_CHAIN), tmp_path / "bounded", effort=NORMAL).placement
    assert _devices(bounded) == _devices(full)


def test_a_device_that_is_not_here_is_named(parse: Parse, tmp_path: Path) -> None:
    with pytest.raises(CollageError, match="unknown device 'abacus'; installed: cpu, sim"):
        _optimize(parse(_CHAIN), tmp_path, target=Target("cpu", 1, (), ("abacus",)))


def test_a_placement_needs_the_device(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _optimize(parse(_CHAIN), tmp_path, backends=["sim"])
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    monkeypatch.delenv(PLUGINS_VARIABLE)
    default_registry.cache_clear()
    with pytest.raises(CollageError, match="sim"):
        load(tmp_path / "m.collage")


def test_a_view_brings_nothing_to_a_device(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse(_CHAIN), tmp_path, constraints=_ONLY_SIM)
    for i in range(2):
        data = found.placement.to_json()
        data["conversions"][i]["backend"] = "view"
        with pytest.raises(PlacementError, match="a view is to convert"):
            build(found.graph, Placement.from_json(data))


def test_what_lies_on_two_devices_is_no_group(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse(_CHAIN), tmp_path, backends=["sim"])
    data = found.placement.to_json()
    data["groups"][0]["inputs"][0]["device"] = "cpu"
    with pytest.raises(PlacementError, match="memory of several devices"):
        build(found.graph, Placement.from_json(data))


def test_the_command(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import onnx

    from collage_core.cli.main import main

    _declare(monkeypatch, **_FREE)
    onnx.save(parse(_CHAIN), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    given = ["optimize", "m.onnx", "--devices", "cpu,sim", "--backends", "sim", "--rounds", "2"]
    given += ["--exclude", "reference"]
    assert main([*given, "-o", "m.collage", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["devices"] == ["cpu", "sim"]
    assert {g["device"] for g in told["groups"]} == {"sim"}
    assert len(told["transfers"]) == 2
    assert main(["optimize", "m.onnx", "--devices", "sim", "--precision", "fp16,half", "--json"]) == 1
    assert "'half' is no precision to store floats in" in capsys.readouterr().err
    assert main(["explain", "m.collage"]) == 0
    assert "2 of these are transfers: 32768 bytes" in capsys.readouterr().out
    assert main(["check", "m.collage", "--budget", "5s"]) in (0, 3)
    capsys.readouterr()
    assert main(["costs", "prune", "--stale"]) == 0
    assert capsys.readouterr().out.startswith("0 ")
    _declare(monkeypatch, launch_us=7)
    assert main(["costs", "prune", "--stale"]) == 0
    assert not capsys.readouterr().out.startswith("0 ")
    monkeypatch.setenv(VARIABLE, "{")
    assert main(["backends"]) == 0
    assert "no: COLLAGE_SIMULATOR is an object of numbers" in capsys.readouterr().out
    assert main(["costs", "prune", "--stale"]) == 0
    assert capsys.readouterr().out.startswith("0 "), "what cannot be told is kept"


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
