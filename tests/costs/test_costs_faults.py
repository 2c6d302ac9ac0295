"""`collage optimize` with a backend that misbehaves: it costs that backend's candidates, and `collage
explain` says why.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hanging import HANGS
from onnx.reference import ReferenceEvaluator
from processes import gone, wait_until

from collage_core.cli.main import main
from collage_core.plugins import PLUGINS_VARIABLE, Registry
from collage_core.runtime import load

if TYPE_CHECKING:
    from collage_command import Collage

PLUGIN = "costs_faulty_backends"
_PLUGINS = Path(__file__).parent / "plugins"
_SUPPORT = Path(__file__).parents[1] / "support"
_TEXT = """<ir_version: 10, opset_import: ["" : 20]> g (float[2,3,4,8] x) => (float y) {
    [relu] r = Relu(x)
    [matmul] m = MatMul(r, w)
    [add] y = Add(m, r)
}"""


@pytest.fixture
def model(collage: Collage) -> Path:
    """x -> Relu -> MatMul (weights) -> Add (with Relu's output) -> y."""
    model = onnx.parser.parse_model(_TEXT)
    weights = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = collage.folder / "m.onnx"
    onnx.save(model, path)
    return path


def _optimized(collage: Collage, model: Path, fault: str, variables: dict[str, str]) -> tuple[Path, str]:
    """The bundle of a `collage optimize` that went well, and its standard error."""
    collage.variables.update(
        {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(_PLUGINS), str(_SUPPORT), os.environ.get("PYTHONPATH")])
            ),
            HANGS: str(collage.folder / "hangs"),
            PLUGINS_VARIABLE: PLUGIN,
            "COLLAGE_TEST_FAULT": fault,
            "OPENBLAS_NUM_THREADS": "1",
            **variables,
        }
    )
    bundle = collage.folder / "m.collage"
    process = collage.start(
        "optimize",
        model,
        "--threads",
        "1",
        "--rounds",
        "4",
        "--backends",
        "good,bad",
        "--exclude",
        "reference",
        "-o",
        bundle,
    )
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return bundle, err


def _explained(bundle: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    assert main(["explain", str(bundle), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert main(["explain", str(bundle)]) == 0
    return report, capsys.readouterr().out


def _reasons(report: Any) -> list[str]:
    """What is said about `bad`."""
    return [
        *(i["reason"] for i in report["infeasible"] if i["backend"] == "bad"),
        *report["declined"].get("bad", ()),
        *report["rejected"],
    ]


_CRASH = "killed by SIGSEGV (segmentation fault)"
_LIMITS = {"COLLAGE_CANDIDATE_LIMIT_S": "77", "COLLAGE_WORKER_MEMORY_MIB": "700"}


_FAULTS: list[tuple[str, list[str]]] = [
    ("crash", [f"crashed: the worker process died: {_CRASH}"]),
    ("crash at build", [f"crashed: the worker process died: {_CRASH}"]),
    ("crash in bind", [f"crashed: the worker process died: {_CRASH}"]),
    ("crash later", [f"crashed: the worker process died: {_CRASH}"]),
    ("crash in supported", [f"crashed: the worker process died: {_CRASH}"]),
    ("exit", ["crashed: the worker process died: exit code 7"]),
    ("leave daemons", ["crashed: the worker process died: killed by SIGABRT (aborted)"]),
    ("hang", ["timeout: no answer within 77 s"]),
    ("hang at build", ["timeout: no answer within 77 s"]),
    ("raise", ["failed: BackendError: no kernel for this shape"]),
    ("raise in bind", ["failed: RuntimeError: no binding today"]),
    ("error code", ["failed: BackendError: the kernel returned error code 42"]),
    ("no kernel at all", ["failed: AttributeError"]),
    ("raise in environment", ["RuntimeError: no environment today"]),
    ("raise in patterns", ["patterns of bad failed: RuntimeError: no patterns today"]),
    ("raise in variants", ["bad failed to say what it offers: RuntimeError: no variants today"]),
    ("no variants at all", ["bad failed to say what it offers: TypeError"]),
    ("raise in converts", ["failed to say whether it converts: RuntimeError: no conversions today"]),
    ("crash in conversion", [f"crashed: the worker process died: {_CRASH}"]),
    ("allocate", ["crashed: the worker process died: it used more than 700 MiB of memory"]),
    ("overrun", [f"wrong: it wrote outside its buffers, behind output {v!r}" for v in "rmy"]),
    (
        "far overrun",
        [f"wrong: it wrote outside its buffers, behind output {v!r} ({_CRASH})" for v in "rmy"],
    ),
    ("far overread", [f"crashed: it reads outside its buffers: the worker process died: {_CRASH}"]),
    ("wrong", [f"wrong: output {v!r} has error 0.01, more than 0.0001 for float32" for v in "rmy"]),
    ("nan", [f"wrong: output {v!r} has NaN or infinity where the reference has none" for v in "rmy"]),
    ("write nothing", [f"wrong: output {v!r} has NaN or infinity" for v in "rmy"]),
    ("late", [f"wrong: output {v!r} changed after the call had returned" for v in "rmy"]),
    ("late later", [f"wrong: output {v!r} changed after the call had returned" for v in "rmy"]),
    ("change input", [f"wrong: it changed its input {v!r}" for v in "xrm"]),
    ("change input later", [f"wrong: it changed its input {v!r}" for v in "xrm"]),
    ("in the whole: crash", [f"bad: the worker process died: {_CRASH}"]),
    ("in the whole: raise", ["step bad: nodes 1 failed: RuntimeError: no more runs today"]),
    ("in the whole: wrong", ["bad: output 'y' has error"]),
]
_ALWAYS = {"crash", "hang", "raise in variants", "overrun", "wrong", "late", "in the whole: wrong"}
"""One of a kind; the nightly session tries the others, most of which tests of jobs know as well."""


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        pytest.param(*case, marks=pytest.mark.ci if case[0] in _ALWAYS else pytest.mark.slow)
        for case in _FAULTS
    ],
)
def test_a_fault_costs_the_faulty_backend_only(
    collage: Collage,
    model: Path,
    fault: str,
    reasons: Sequence[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemons = collage.folder / "daemons"
    bundle, _ = _optimized(collage, model, fault, {**_LIMITS, "COLLAGE_TEST_DAEMONS": str(daemons)})

    report, text = _explained(bundle, capsys)
    assert [g["backend"] for g in report["groups"]] == ["good"] * 3
    assert report["max_rel_error"] < 1e-5
    said = _reasons(report)
    for reason in reasons:
        assert any(reason in r for r in said), (reason, said)
        assert reason in text, text
    assert "bad" in text

    monkeypatch.setenv("COLLAGE_TEST_FAULT", fault)
    executable = load(bundle, Registry([importlib.import_module(PLUGIN)]))
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 8), np.float32)
    (expected,) = ReferenceEvaluator(onnx.load(model)).run(None, {"x": x})
    np.testing.assert_allclose(executable({"x": x})["y"], np.asarray(expected), rtol=1e-4, atol=1e-5)

    if fault == "leave daemons":
        left = [int(pid) for pid in daemons.read_text().split()]
        assert len(left) >= 2
        assert wait_until(lambda: all(map(gone, left)))
    assert not list(collage.temporary.glob("collage-*"))


@pytest.mark.ci
def test_without_a_fault_the_fast_backend_is_chosen(
    collage: Collage, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the tests above would show nothing."""
    report, _ = _explained(_optimized(collage, model, "right", _LIMITS)[0], capsys)
    assert [g["backend"] for g in report["groups"]] == ["bad"] * 3
    assert _reasons(report) == []
