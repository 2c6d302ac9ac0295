"""What one script asks of a machine with a GPU: kept step by step, rehearsed on the simulated accelerator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from collage_benchmarks.gpu.contenders import Contender
from collage_benchmarks.gpu.contest import take_turns
from collage_benchmarks.gpu.machine import report
from collage_benchmarks.gpu.steps import Step, run_steps

from collage_core.plugins import PLUGINS_VARIABLE


def _python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def _told(folder: Path, name: str) -> dict[str, object]:
    told: dict[str, object] = json.loads((folder / f"{name}.json").read_text())
    return told


def test_steps_are_kept_and_those_that_failed_are_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x')"
    steps = [
        Step("good", _python(f"{count}; print('said')"), 60),
        Step("bad", _python(f"{count}; import sys; sys.exit('no')"), 60),
    ]
    assert run_steps(steps, tmp_path / "out", 120) == 1
    assert (tmp_path / "out" / "good.out").read_text() == "said\n"
    assert (tmp_path / "out" / "bad.err").read_text() == "no\n"
    assert run_steps(steps, tmp_path / "out", 120) == 1
    assert (tmp_path / "count").read_text() == "xxx"
    assert "good: done before" in capsys.readouterr().out


def test_a_step_is_ended_at_its_limit_with_what_it_started(tmp_path: Path) -> None:
    child = "import time; time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run_steps([Step("slow", _python(code), 1)], tmp_path, 60) == 1
    assert _told(tmp_path, "slow")["exit_code"] == -9


def test_no_step_is_begun_that_has_no_time(tmp_path: Path) -> None:
    assert run_steps([Step("late", _python("pass"), 100)], tmp_path, 10) == 0
    assert not (tmp_path / "late.json").exists()


def test_a_damaged_answer_is_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "step.json").write_text("{")
    assert run_steps([Step("step", _python("pass"), 60)], tmp_path, 60) == 0
    assert _told(tmp_path, "step")["exit_code"] == 0


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def contender(name: str) -> Contender:
        def run() -> None:
            order.append(name)

        return Contender(run, list)

    runs_ms = take_turns({"a": contender("a"), "b": contender("b")}, rounds=2, runs=2)
    assert "".join(order) == "aaabbb" + "bbbaaa"
    assert {name: len(times) for name, times in runs_ms.items()} == {"a": 4, "b": 4}


def test_a_machine_without_a_gpu_says_so() -> None:
    told = report()
    assert told["devices"]["cpu"]["reason"] is None
    assert json.loads(json.dumps(told, default=str))["packages"]["numpy"] == np.__version__


@pytest.mark.ci
def test_the_script_is_rehearsed_on_the_simulated_accelerator(tmp_path: Path) -> None:
    told = ("--out", str(tmp_path), "--networks", "tiny_encoder", "--ways", "", "--place-s", "60")
    here = ("--devices", "cpu,sim", "--backends", "sim,dnnl")
    command = [sys.executable, str(Path(__file__).parents[1] / "gpu.py"), *told, *here]
    simulator = Path(__file__).parents[2] / "examples" / "collage_simulator"
    environment = {
        **os.environ,
        PLUGINS_VARIABLE: "collage_simulator.plugin",
        "PYTHONPATH": str(simulator),
        "COLLAGE_HOME": str(tmp_path / "home"),
    }
    first, second = (
        subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=True
        ).stdout
        for _ in range(2)
    )
    assert "place-tiny_encoder-fp32: exit code 0" in first
    placed = json.loads((tmp_path / "place-tiny_encoder-fp32.out").read_text())
    assert placed["devices"] == ["cpu", "sim"]
    assert placed["groups"]
    assert "place-tiny_encoder-fp32: done before" in second
