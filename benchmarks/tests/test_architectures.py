"""Networks that PyTorch exports: the table of what was tried, and what is said where PyTorch is missing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from collage_benchmarks.architectures import answering
from collage_benchmarks.architectures.__main__ import main
from collage_benchmarks.architectures.architecture import ANSWER, GIVEN
from collage_benchmarks.architectures.table import architectures_table

from collage_core import optimize
from collage_core.runtime.bundle import Bundle, save

_RECORD: dict[str, Any] = {
    "title": "Tiny",
    "nodes": 7,
    "commit": {"id": "0123456789"},
    "dirty": False,
    "failed": None,
    "sizes": {
        "1": {
            "nodes": 5,
            "off": {"y": 2e-7, "z": 1e-5},
            "failed": None,
            "shares": {"dnnl": {"share": 0.9}, "tvm": {"share": 0.096}, "reference": {"share": 0.004}},
        },
        "4": {"nodes": 6, "off": {"y": 1e-7}, "failed": None, "shares": {"openvino": {"share": 1.0}}},
    },
}


def _cells(record: dict[str, Any]) -> list[str]:
    return [cell.strip() for cell in architectures_table([record]).splitlines()[-1].split("|")[1:-1]]


def test_the_worst_of_all_sizes_is_told() -> None:
    assert _cells(_RECORD) == ["Tiny", "1, 4", "7", "5, 6", "1e-05", "0.4%", "dnnl, openvino, tvm", "0123456"]


def test_what_failed_is_told_with_its_reason() -> None:
    sizes = {**_RECORD["sizes"], "4": {"failed": "collage: no backend can run a | b"}}
    assert _cells({**_RECORD, "sizes": sizes})[3].startswith("4: collage: no backend can run a")
    failed = {"step": "export", "exit_code": 1, "last_lines": ["first", "it ended badly"]}
    cells = _cells({**_RECORD, "sizes": {}, "nodes": 0, "failed": failed, "dirty": True})
    assert cells == ["Tiny", "-", "-", "export: it ended badly", "-", "-", "-", "0123456, changed"]


def test_without_pytorch_what_to_install_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed")
    assert main(["vit"]) == 1
    assert "pip install 'collage-benchmarks[architectures]'" in capsys.readouterr().err


def test_answers_are_compared_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> g (float[3] x) => (float[3] y, int64[1] top, float[3] w) '
    )
    body = "{ y = Neg(x) top = ArgMax(x) z = Neg(y) one = Constant<value = float {1}>() w = Div(one, z) }"
    found = optimize(onnx.parser.parse_model(text + body), backends=["reference"], rounds=0)
    save(Bundle(found.graph, found.placement), tmp_path / "m.collage")
    x = np.array([1.0, -4.0, 0.0], np.float32)
    answers = {"y": -x + np.float32(1e-3), "top": np.array([1]), "w": np.array([1.0, -0.25, 3.0], np.float32)}
    sample = tmp_path / "sample.npz"
    arrays: dict[str, Any] = {GIVEN + "x": x, **{ANSWER + name: a for name, a in answers.items()}}
    np.savez(sample, **arrays)
    assert answering.main([str(tmp_path / "m.collage"), str(sample)]) == 0
    off = json.loads(capsys.readouterr().out)
    assert off["y"] == pytest.approx(1e-3 / 4.001, rel=1e-3)
    assert off["top"] == 1.0, "it answers otherwise"
    assert off["w"] == 1.0, "infinity is not 3"
