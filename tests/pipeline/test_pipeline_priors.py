"""What backends have reached is kept, of each by itself, and begins the guesses of the next network."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from collage_benchmarks.networks import NETWORKS

from collage_core import CostDatabase, Target, optimize
from collage_core.candidates import generate_candidates
from collage_core.cli.main import main
from collage_core.costs.record import CostRecord
from collage_core.costs.roofline import PEAKS_VERSION, Peaks
from collage_core.errors import CollageError
from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from collage_core.measuring.costing import Costs
from collage_core.measuring.estimates import Estimates
from collage_core.measuring.machine import Machine
from collage_core.measuring.priors import PRIORS, keep_priors, known_priors, priors_environment
from collage_core.pipeline.effort import NORMAL, THOROUGH
from collage_core.plugins import Registry, default_registry, hookimpl
from collage_core.priors import Priors
from collage_core.reference import ReferenceBackend

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collage_core.candidates import CandidateSet
    from tests.pipeline.conftest import Parse

pytestmark = pytest.mark.ci

_TARGET = Target("cpu", 1)
_SHARES = '{"format": "collage-priors", "version": 1, "backend": "x", "peaks": "2", "shares": {"a": %s}}'


def _machine(database: CostDatabase) -> Machine:
    """With nothing but the reference."""
    return Machine.of(database, (), _TARGET)


def test_the_last_of_a_kind_stands_and_other_kinds_stay() -> None:
    with CostDatabase(":memory:") as database:
        machine = _machine(database)
        assert known_priors(machine) == {"reference": {}}
        keep_priors(machine, {"reference": {"a": 0.5, "b": 0.25}})
        keep_priors(machine, {"reference": {"b": 0.75}})
        assert known_priors(machine) == {"reference": {"a": 0.5, "b": 0.75}}
        assert known_priors(replace(machine, target=Target("cpu", 2))) == {"reference": {}}, (
            "of other threads"
        )


def test_what_packages_bring_stands_until_it_is_seen_here() -> None:
    """The middle of what several bring. Of another version's peaks, and of backends that do not take part,
    nothing.
    """
    peaks = priors_environment(ReferenceBackend(), _TARGET)["peaks"]
    first = SimpleNamespace(
        collage_priors=hookimpl(
            lambda: [
                Priors("reference", peaks, {"a": 0.4, "b": 0.25}),
                Priors("reference", peaks, {"a": 0.9}),
                Priors("reference", peaks, {"a": 0.5}),
                Priors("reference", "0", {"old": 0.5}),
                Priors("elsewhere", peaks, {"a": 0.5}),
            ]
        )
    )
    registry = Registry([first], entry_points=False)
    with CostDatabase(":memory:") as database:
        machine = Machine.of(database, (), _TARGET, registry=registry)
        assert known_priors(machine) == {"reference": {"a": 0.5, "b": 0.25}}
        keep_priors(machine, {"reference": {"b": 0.75, "c": 1.0}})
        assert known_priors(machine) == {"reference": {"a": 0.5, "b": 0.75, "c": 1.0}}
    assert not registry.failures


def test_what_the_plugins_here_bring_is_of_their_backends_and_of_today() -> None:
    """Kinds are told as `Estimates` tells them: most of a network's are known, and it was not learnt from."""
    graph = normalise(from_model(NETWORKS["squeezenet"].build()))
    registry = default_registry()
    backends = registry.available(["reference", "dnnl", "ncnn", "tvm"])
    offered = generate_candidates(graph, backends, _TARGET)
    peaks = Peaks(1.0, {1 << 40: 1.0})
    known = {c.kernel_key: CostRecord("ok", median_ms=1.0) for c in offered.candidates}
    kinds = Estimates(offered, peaks).reached(Costs(known, {}))
    assert {p.backend for p in registry.priors} == {"dnnl", "mkl", "ncnn", "onnxruntime", "openvino", "tvm"}
    assert {p.peaks for p in registry.priors} == {PEAKS_VERSION}
    for priors in registry.priors:
        if offering := kinds.get(priors.backend):
            assert len(offering.keys() & priors.shares.keys()) > 0.6 * len(offering), priors.backend
    assert not registry.failures


def test_who_brings_something_else_is_told() -> None:
    registry = Registry([SimpleNamespace(collage_priors=hookimpl(lambda: [{"a": 0.5}]))], entry_points=False)
    assert registry.priors == ()
    (said,) = registry.failures.values()
    assert "which is no Priors" in said


def test_what_a_package_brings_is_what_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The middle of what several machines have shown; written by the command and read by the plugin."""
    costs, file = tmp_path / "c.sqlite", tmp_path / "priors.json"
    with CostDatabase(costs) as database:
        for threads, share in ((1, 0.2), (2, 0.4), (3, 0.9)):
            machine = Machine.of(database, (), Target("cpu", threads))
            keep_priors(machine, {"reference": {"b": share, f"of {threads}": 0.123456, "hopeless": 1e-9}})
    assert main(["costs", "priors", "reference", str(file), "--costs", str(costs)]) == 0
    assert main(["costs", "priors", "reference", "--costs", str(costs)]) == 0
    assert capsys.readouterr().out == file.read_text()
    read = Priors.read(file)
    assert read.shares == {"b": 0.4, "of 1": 0.123, "of 2": 0.123, "of 3": 0.123}
    assert Priors.of_json(read.to_json()) == read
    assert main(["costs", "priors", "acme", "--costs", str(costs)]) == 1
    said = "what kernels of 'acme' reach is not known; of these it is: reference"
    assert said in capsys.readouterr().err
    assert main(["costs", "priors", "reference", str(costs), "--costs", str(costs)]) == 1
    assert "cost database" in capsys.readouterr().err
    with CostDatabase(costs) as database:
        assert len(database) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no priors of a backend"),
        ('{"format": "collage-priors", "version": 7}', "priors of version 7; this Collage reads 1"),
        ('{"format": "collage-priors", "version": 1, "backend": "a", "shares": {}}', "without a backend"),
        (_SHARES % "0", "the share of a is 0, no number from 1e-06 to 1000"),
        (_SHARES % ("9" * 400), "the share of a is 9999"),
        (_SHARES.replace('{"a": %s}', "null"), "priors without shares"),
        (_SHARES % "NaN", "the share of a is nan"),
        (_SHARES % "true", "the share of a is True"),
    ],
)
def test_a_file_that_holds_no_priors_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "priors.json"
    file.write_text(text)
    with pytest.raises(CollageError, match=r"priors\.json: ") as caught:
        Priors.read(file)
    assert said in str(caught.value)


def test_where_there_is_nothing_to_read_it_is_said_once(tmp_path: Path) -> None:
    for path, read in ((tmp_path / "none.json", Priors.read), (tmp_path / "none", Priors.read_all)):
        with pytest.raises(CollageError) as caught:
            read(path)
        assert str(caught.value) == f"priors are not used: {path}: No such file or directory"


def test_with_wrong_priors_models_are_optimised_all_the_same(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    model = parse("(float[8] x) => (float[8] y) { y = Neg(x) }")
    for number, wrong in enumerate((lambda: [Priors("reference", "2", {"a": -1.0})], lambda: [3])):
        plugin = ModuleType("brings_wrong_priors")
        plugin.collage_priors = hookimpl(wrong)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
        registry = Registry([plugin], entry_points=False)
        costs = tmp_path / f"{number}.sqlite"
        found = optimize(model, registry=registry, target=_TARGET, costs=costs, rounds=0)
        assert found.placement.predicted_ms
        assert len(registry.failures) == 1


def test_damaged_ones_are_none() -> None:
    with CostDatabase(":memory:") as database:
        machine = _machine(database)
        keep_priors(machine, {"reference": {"a": 0.5}})
        (key,) = [stored.key for stored in database.items() if stored.key.kind == PRIORS]
        for damaged in ({}, {"shares": 3}, {"shares": {"a": "fast", "b": -1.0}}):
            database.put(key, CostRecord("ok", details=damaged))
            assert known_priors(machine) == {"reference": {}}


def test_whoever_measures_leaves_them(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    model = parse("(float[4,4] x) => (float[4,4] y) { [neg] a = Neg(x) [tan] y = Tan(a) }")
    for effort in (NORMAL, THOROUGH):
        costs = tmp_path / f"{effort.name}.sqlite"
        optimize(model, backends=["reference"], target=_TARGET, costs=costs, effort=effort, rounds=0)
        with CostDatabase(costs) as database:
            shares = known_priors(_machine(database))["reference"]
        assert {kind.split("'")[1] for kind in shares} == {"Neg", "Tan"}
        assert all(0.0 < share < 1.0 for share in shares.values())


def test_the_next_network_begins_with_them(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    told: list[Mapping[str, Mapping[str, float]]] = []

    def estimates(
        candidates: CandidateSet, peaks: Peaks, priors: Mapping[str, Mapping[str, float]]
    ) -> Estimates:
        told.append(priors)
        return Estimates(candidates, peaks, priors)

    monkeypatch.setattr("collage_core.pipeline.run.Estimates", estimates)
    for text in (
        "(float[4,4] x) => (float[4,4] y) { y = Neg(x) }",
        "(float[8] x) => (float[8] y) { y = Neg(x) }",
    ):
        costs = tmp_path / "c.sqlite"
        optimize(parse(text), backends=["reference"], target=_TARGET, costs=costs, rounds=0)
    first, second = told
    assert first == {"reference": {}}
    assert second["reference"]
