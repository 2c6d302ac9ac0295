"""`collage tune`: its options and mistakes, killed and started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx.parser
import pytest
from processes import processes_with, wait_until

from collage_core.plugins import PLUGINS_VARIABLE, default_registry

if TYPE_CHECKING:
    from collage_command import Collage

    from tests.cli.conftest import Mistake

_PLUGINS = Path(__file__).parents[1] / "pipeline" / "plugins"
_SUPPORT = Path(__file__).parents[1] / "support"
_MODEL = """<ir_version: 10, opset_import: ["" : 20]> g (float[8] x) => (float y) {
    [a] a = Relu(x)
    [b] y = Neg(a)
}"""
_OPTIONS = ("--backend", "trier", "--against", "steady", "--threads", "1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(_MODEL), path)
    return path


@pytest.fixture
def tuner(collage: Collage) -> Collage:
    collage.variables.update(
        {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(_PLUGINS), str(_SUPPORT), os.environ.get("PYTHONPATH")])
            ),
            PLUGINS_VARIABLE: "pipeline_tuning_backends",
            "OPENBLAS_NUM_THREADS": "1",
        }
    )
    return collage


def _tried(collage: Collage) -> int:
    return sum(len(p.read_text().split()) for p in (collage.home / "trier").glob("*"))


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_and_started_again_it_goes_on(tuner: Collage, model: Path, number: signal.Signals) -> None:
    arguments = ("tune", model, *_OPTIONS, "--trials", "20")
    tuner.variables["COLLAGE_TEST_STEP_S"] = "3"
    process = tuner.start(*arguments)
    assert wait_until(lambda: _tried(tuner) >= 4 or process.poll() is not None)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=120)
    assert out == ""
    assert process.returncode == (130 if number == signal.SIGINT else -number), err
    assert wait_until(lambda: not processes_with(f"COLLAGE_HOME={tuner.home}"))
    tried = _tried(tuner)
    assert 4 <= tried < 40

    tuner.variables["COLLAGE_TEST_STEP_S"] = "0"
    report = tuner.json(*arguments)
    assert [t["trials"] for t in report["tuned"]] == [20, 20]
    assert sum(t["new_trials"] for t in report["tuned"]) == 40 - tried
    assert all(t["faster"] for t in report["tuned"])
    backends = ("--backends", "steady,trier", "--exclude", "reference")
    placed = tuner.json("optimize", model, *backends, "--threads", "1", "--rounds", "4")
    assert {g["backend"] for g in placed["groups"]} == {"trier"}


def test_it_prints_what_came_of_it(tuner: Collage, model: Path) -> None:
    text = tuner.run("tune", model, *_OPTIONS, "--trials", "4", "--budget", "1h")
    assert "GFLOP/s" in text
    assert "4 (+4)" in text
    assert "faster" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trials", "0"], "--trials must be at least 1"),
        (["--budget", "soon"], "expected a duration, as in 90s, 10m or 1h"),
        (["--budget=-5s"], "expected a duration"),
        (["--backend", "nobody"], "unknown backend 'nobody'"),
        (["--backend", "reference"], "nothing of this model can be tuned by reference"),
    ],
)
def test_mistakes(
    mistake: Mistake, model: Path, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLUGINS_VARIABLE, raising=False)
    default_registry.cache_clear()
    assert said in mistake("tune", model, *options)


def test_no_model(mistake: Mistake, tmp_path: Path) -> None:
    assert "no such file" in mistake("tune", tmp_path / "none.onnx")
