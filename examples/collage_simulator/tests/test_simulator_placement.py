"""Networks over the processor and the simulated device go where arithmetic says."""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from collage_simulator.costs import VARIABLE, declared
from collage_simulator.device import SimQueue
from simulated_chain import CHAIN, ONLY_SIM, declare, devices_of, optimized

from collage_core import Constraints, Optimization, Target, build, optimize
from collage_core.errors import CollageError
from collage_core.measuring.progress import Silent
from collage_core.pipeline.effort import NORMAL
from collage_core.plugins import PLUGINS_VARIABLE, Registry, default_registry
from collage_core.reference import evaluate
from collage_core.report.summary import optimization_json

if TYPE_CHECKING:
    from conftest import Parse

_FREE = {"launch_us": 0.1, "transfer_us": 0.1, "link_bytes_per_us": 1e9, "memory_bytes_per_us": 1e9}


@pytest.mark.ci
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
    declare(monkeypatch, **costs)
    found = optimized(parse(CHAIN), tmp_path)
    assert (
        Counter(
            d
            for g, d in zip(found.placement.groups, devices_of(found.placement), strict=True)
            for _ in g.nodes
        )
        == devices
    )
    told = optimization_json(found, "m.onnx")
    assert [g["device"] for g in told["groups"]] == devices_of(found.placement)
    moved = len(told["transfers"])
    assert moved == (2 if "sim" in devices else 0)
    assert all(t["bytes"] == 4 * 64 * 64 and t["cost_ms"] > 0 for t in told["transfers"])


@pytest.mark.ci
def test_the_border_moves_with_the_cost_of_the_way(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three operators that only NumPy offers beside the device."""
    model = parse("(float[64,64] x) => (float[64,64] y) { [e] a = Exp(x) [s] b = Sqrt(a) [l] y = Log(b) }")
    shares = []
    for transfer_us in (0.1, 1000.0):
        declare(monkeypatch, launch_us=0.1, transfer_us=transfer_us)
        found = optimized(model, tmp_path, backends=["sim", "reference"])
        shares.append(devices_of(found.placement).count("sim"))
    assert shares[0] == 3 > shares[1]


_SIDES = {"a": 32, "b": 160, "c": 800}


@pytest.mark.slow
def test_the_border_is_where_declared_and_recorded_costs_put_it(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three operators beside each other, on ever larger values: the dearer the way, the fewer go there."""
    shapes = {v: f"float[{side},{side}]" for v, side in _SIDES.items()}
    given, returned = (", ".join(f"{t} {v}{end}" for v, t in shapes.items()) for end in ("", "y"))
    model = parse(f"({given}) => ({returned}) {{ {' '.join(f'[{v}] {v}y = Exp({v})' for v in shapes)} }}")

    def placed(transfer_us: float) -> Optimization:
        declare(monkeypatch, transfer_us=transfer_us, link_bytes_per_us=1e6, launch_us=0.5)
        return optimized(model, tmp_path, backends=["sim", "reference"])

    def saved_us(found: Optimization) -> dict[str, float]:
        """By value: how much less the operator takes there, by what is recorded here and declared there."""
        here = {
            c.subgraph.inputs[0]: found.costs.kernels[c.kernel_key].median_ms or 0.0
            for c in found.candidates.candidates
            if c.backend == "reference"
        }
        return {v: here[v] * 1e3 - declared().launch_us - _there_us(_SIDES[v]) for v in _SIDES}

    def declared_way_us(value: str) -> float:
        return declared().copy_us(4 * _SIDES[value] ** 2)

    saved = saved_us(placed(500.0))
    bytes_us = {v: declared_way_us(v) - declared().transfer_us for v in _SIDES}
    limits_us = sorted(saved[v] / 2 - bytes_us[v] for v in _SIDES)  # of what each transfer may take beside
    assert limits_us[0] > 0, "each is faster there"
    between = [limits_us[0] / 2, *(math.sqrt(p * q) for p, q in pairwise(limits_us)), 2 * limits_us[-1]]
    counts = []
    for transfer_us in between:
        found = placed(transfer_us)
        groups = zip(found.placement.groups, devices_of(found.placement), strict=True)
        there = {group.nodes[0] for group, device in groups if device == "sim"}
        values = {n.inputs[0] for n in found.graph.nodes if n.id in there}
        assert values == {v for v, us in saved_us(found).items() if us > 2 * declared_way_us(v)}
        counts.append(len(values))
        for transfer in found.placement.conversions:
            way_us = declared_way_us(transfer.value.removesuffix("y"))
            assert transfer.cost_ms == pytest.approx(way_us / 1e3, rel=0.02)
    assert counts == [3, 2, 1, 0]


def _there_us(side: int) -> float:
    """One operation for each element, which is read and written."""
    return declared().run_us(side**2, 2 * 4 * side**2)


@pytest.mark.ci
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

    model = parse(CHAIN)
    for operations_per_us, devices, waits in (
        (2000.0, ["sim", "cpu", "sim", "cpu", "sim"], 3),
        (1e9, ["sim"] * 5, 1),
    ):
        declare(monkeypatch, **{**_FREE, "operations_per_us": operations_per_us})
        folder = tmp_path / str(waits)
        folder.mkdir()
        found = optimized(model, folder, backends=["sim", "reference"], rounds=2)
        mix = found.mix
        assert devices_of(mix) == devices
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


@pytest.mark.slow
def test_groups_and_crossings_are_calibrated_with_the_device(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everywhere else here that is switched off."""
    monkeypatch.delenv("COLLAGE_CALIBRATION")
    declare(monkeypatch, **_FREE)
    told: list[str] = []
    progress = Silent()
    monkeypatch.setattr(progress, "note", told.append)
    found = optimized(parse(CHAIN), tmp_path, rounds=2, progress=progress)
    assert not [line for line in told if "calibrat" in line or "failed" in line], told
    assert found.costs.transitions.group_ms.keys() >= {"sim", "dnnl"}
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok
    again = optimized(parse(CHAIN), tmp_path, rounds=2)
    assert not again.costs.measured


@pytest.mark.ci
def test_what_the_device_computes_in_halves_only_is_rounded_on_the_host(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What crosses is not changed, and nobody changes it there: it goes by way of the host's halves."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "simulator_halves")
    default_registry.cache_clear()
    declare(monkeypatch, **_FREE)
    excluded = Constraints(excluded=[("reference", op) for op in ("Neg", "MatMul", "Tanh", "Relu")])
    found = optimized(
        parse(CHAIN),
        tmp_path,
        backends=["sim", "reference"],
        constraints=excluded,
        target=Target("cpu", 1, ("float16",), ("sim",)),
    )
    assert set(devices_of(found.placement)) == {"sim"}
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


@pytest.mark.ci
def test_nobody_is_asked_to_convert_where_he_does_not_run(parse: Parse, tmp_path: Path) -> None:
    target = Target("cpu", 1, ("float16",), ("sim",))
    found = optimized(parse(CHAIN), tmp_path, target=target)
    asked = {
        (backend, source.device, destination.device)
        for (_, source, destination), records in found.costs.conversion_records.items()
        for backend in records
    }
    assert {"sim", "reference", "transfer:sim"} <= {backend for backend, *_ in asked}
    for backend, *devices in asked:
        expected = {"sim": {"sim"}, "transfer:sim": {"cpu", "sim"}}.get(backend, {"cpu"})
        assert set(devices) == expected, backend


@pytest.mark.ci
def test_transfers_are_priced_as_they_are_declared(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, launch_us=1, transfer_us=3, link_bytes_per_us=1000, memory_bytes_per_us=1e9)
    found = optimized(parse(CHAIN), tmp_path, backends=["sim"])
    assert {c.backend for c in found.placement.conversions} == {"transfer:sim"}
    for c in found.placement.conversions:
        assert c.cost_ms == pytest.approx((3 + 4 * 64 * 64 / 1000) / 1e3, rel=1e-6)


@pytest.mark.ci
def test_a_second_call_measures_nothing(parse: Parse, tmp_path: Path) -> None:
    assert optimized(parse(CHAIN), tmp_path).costs.measured
    assert not optimized(parse(CHAIN), tmp_path).costs.measured


@pytest.mark.slow
def test_another_device_is_compared_anew(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same placement, but what it took was taken on a device with other costs."""
    measured = []
    for launch_us in (5.0, 5.0, 6.0):
        declare(monkeypatch, launch_us=launch_us)
        found = optimized(parse(CHAIN), tmp_path, constraints=ONLY_SIM, rounds=2)
        measured.append(any(c.measured for c in found.comparisons))
    assert measured == [True, False, True]


@pytest.mark.ci
def test_a_registry_of_ones_own(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed, and nobody names the plugin."""
    monkeypatch.delenv(PLUGINS_VARIABLE)
    default_registry.cache_clear()
    registry = Registry([importlib.import_module("collage_simulator.plugin")])
    found = optimized(parse(CHAIN), tmp_path, registry=registry, constraints=ONLY_SIM, rounds=2)
    assert set(devices_of(found.placement)) == {"sim"}
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok


@pytest.mark.ci
def test_costs_of_the_processor_serve_with_and_without_the_device(parse: Parse, tmp_path: Path) -> None:
    optimized(parse(CHAIN), tmp_path, target=Target("cpu", 1), backends=["dnnl", "reference"])
    found = optimized(parse(CHAIN), tmp_path, backends=["dnnl", "reference"])
    assert not found.costs.measured


@pytest.mark.ci
def test_halves_on_the_device(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its memory is what takes time, values lie there as halves, and become that before they come: the
    processor takes less for it.
    """
    declare(monkeypatch, launch_us=0.1, transfer_us=0.1, memory_bytes_per_us=200)
    target = Target("cpu", 1, ("float16",), ("sim",))
    ops = "a = Tanh(x) b = Neg(a) c = Abs(b) d = Relu(c) y = Sigmoid(d)"
    chain = f"(float[64,64] x) => (float[64,64] y) {{ {ops} }}"
    found = optimized(parse(chain), tmp_path, constraints=ONLY_SIM, target=target, rounds=2)
    stored = Counter(f.dtype for g in found.placement.groups for f in g.variant.outputs)
    assert stored["float16"] >= 3
    ways = Counter(c.backend for c in found.placement.conversions)
    assert ways == {"reference": 2, "transfer:sim": 2}
    assert found.comparison is not None
    assert found.comparison.records["collage"].ok


@pytest.mark.slow
def test_bounds_rule_nothing_out_that_the_device_could_do_faster(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this processor could reach at most says nothing of another."""
    declare(monkeypatch, launch_us=0.01, transfer_us=0.01, link_bytes_per_us=1e9, memory_bytes_per_us=1e9)
    full = optimized(parse(CHAIN), tmp_path).placement
    (tmp_path / "bounded").mkdir()
    bounded = optimized(parse(CHAIN), tmp_path / "bounded", effort=NORMAL).placement
    assert devices_of(bounded) == devices_of(full)


@pytest.mark.ci
def test_a_device_that_is_not_here_is_named(parse: Parse, tmp_path: Path) -> None:
    with pytest.raises(CollageError, match=r"unknown device 'abacus'; installed: cpu, .*sim"):
        optimized(parse(CHAIN), tmp_path, target=Target("cpu", 1, (), ("abacus",)))


@pytest.mark.ci
def test_the_command(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import onnx

    from collage_core.cli.main import main

    declare(monkeypatch, **_FREE)
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")
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
    assert "2 of these are transfers: 32.8 kB" in capsys.readouterr().out
    assert main(["check", "m.collage", "--budget", "5s"]) in (0, 3)
    capsys.readouterr()
    assert main(["costs", "prune", "--stale"]) == 0
    assert capsys.readouterr().out.startswith("0 ")
    declare(monkeypatch, launch_us=7)
    assert main(["costs", "prune", "--stale"]) == 0
    assert not capsys.readouterr().out.startswith("0 ")
    monkeypatch.setenv(VARIABLE, "{")
    assert main(["backends"]) == 0
    assert "no: COLLAGE_SIMULATOR is an object of numbers" in capsys.readouterr().out
    assert main(["costs", "prune", "--stale"]) == 0
    assert capsys.readouterr().out.startswith("0 "), "what cannot be told is kept"


@pytest.mark.ci
def test_values_go_from_device_to_device_by_way_of_the_host(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing on the host reads or writes them."""
    declare(monkeypatch, **_FREE)
    monkeypatch.setenv(PLUGINS_VARIABLE, "simulator_pair")
    default_registry.cache_clear()
    only = Constraints(excluded=[("sim", "Tanh"), ("sim2", "Neg"), ("reference", None)])
    found = optimize(
        parse("(float[64,64] x) => (float[64,64] y) { a = Neg(x) b = Tanh(a) y = Neg(b) }"),
        backends=["sim", "sim2"],
        target=Target("cpu", 1, accelerators=("sim", "sim2")),
        costs=tmp_path / "costs.sqlite",
        rounds=0,
        constraints=only,
    )
    assert devices_of(found.placement) == ["sim", "sim2", "sim"]
    assert [c.destination.device for c in found.placement.conversions] == [
        *("sim", "cpu", "sim2", "cpu", "sim", "cpu")
    ]
    x = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    np.testing.assert_allclose(build(found.graph, found.placement)({"x": x})["y"], np.tanh(x), atol=1e-6)
