"""Backends that are unknown, not available, or fail while they are looked for: the others go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from small_models import relu_model

from collage_core import BackendError, Registry, UnknownBackendError, hookimpl, optimize
from collage_core.backend import Backend, BackendInfo, BackendKind

if TYPE_CHECKING:
    from collage_command import Collage

    from tests.cli.conftest import Refused

_BACKEND = """
from collage_core import Backend, BackendInfo, BackendKind, hookimpl

class {name}(Backend):
    name = "{name}"

    def info(self):
        {info}

    def variants(self, subgraph, target):
        return []

    def build(self, subgraph, variant, target):
        raise NotImplementedError

@hookimpl
def collage_backends():
    {bring}
"""


def _source(name: str, info: str = "", bring: str = "") -> str:
    kind = "BackendKind.OPERATOR"
    reason = 'library_version=None, reason="its library is not here"'
    info = info or f'return BackendInfo(self.name, {kind}, version="1", {reason})'
    return _BACKEND.format(name=name, info=info, bring=bring or f"return [{name}()]")


_KIND = "BackendKind.OPERATOR"
_INFO = f"return BackendInfo({{}}, {_KIND}, {{}})"
_PLUGINS = {
    "import_raises": "raise RuntimeError('broken on purpose')",
    "import_misses": "import a_library_that_nobody_has",
    "import_exits": "import sys; sys.exit(3)",
    "import_misspelt": "def collage_backends(:",
    "hook_raises": _source("Hook", bring="raise ValueError('no backends today')"),
    "hook_exits": _source("Exit", bring="raise SystemExit(4)"),
    "hook_lies": _source("Liar", bring="return [5]"),
    "info_raises": _source("Info", info="raise OSError('who am I?')"),
    "info_nothing": _source("Nothing", info="return None"),
    "info_of_others": _source("Other", info=_INFO.format("'dnnl'", '"1", None')),
    "kind_a_text": _source("Kind", info=_INFO.format("self.name", '"1", None').replace(_KIND, "'graph'")),
    "devices_a_text": _source("Devices", info=_INFO.format("self.name", '"1", None, "cpu"')),
    "version_a_number": _source("Version", info=_INFO.format("self.name", "3, None")),
    "not_here": _source("abacus"),
    "twin": _source("twin"),
    "twin_again": _source("Twin"),
    "not_core": _source("Reference"),
}
_SAID = {
    "import_raises": "RuntimeError: broken on purpose",
    "import_misses": "ModuleNotFoundError: No module named 'a_library_that_nobody_has'",
    "import_exits": "SystemExit: 3",
    "import_misspelt": "SyntaxError: ",
    "hook_raises": "ValueError: no backends today",
    "hook_exits": "SystemExit: 4",
    "hook_lies": "TypeError: collage_backends returned 5, which is no Backend",
    "info_raises": "OSError: who am I?",
    "info_nothing": "TypeError: info() of 'Nothing' returned None, which is no BackendInfo",
    "info_of_others": "TypeError: 'Other' is 'dnnl' by its info()",
    "kind_a_text": "TypeError: info() tells of no kind, or of what is no text: BackendInfo(",
    "devices_a_text": "TypeError: info() tells the devices 'cpu', which is no tuple of names",
    "version_a_number": "TypeError: info() tells of no kind, or of what is no text: BackendInfo(",
    "twin": "twin 1.0 and twin_again 1.0 bring a backend named 'twin'",
    "twin_again": "twin 1.0 and twin_again 1.0 bring a backend named 'twin'",
    "not_core": "collage-core and not_core 1.0 bring a backend named 'reference'",
}


@pytest.fixture
def installed(collage: Collage, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of these plugins, as installed packages with entry points."""
    folder = collage.folder / "packages"
    folder.mkdir()
    for name, source in _PLUGINS.items():
        (folder / f"{name}.py").write_text(source)
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[collage]\n{name} = {name}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def model(collage: Collage) -> Path:
    path = collage.folder / "m.onnx"
    onnx.save(relu_model(), path)
    return path


@pytest.mark.ci
def test_plugins_that_fail_cost_only_themselves(
    installed: Path, collage: Collage, model: Path, refused: Refused
) -> None:
    report = {entry["name"]: entry for entry in collage.json("backends")}
    for name, said in _SAID.items():
        assert report[name]["kind"] == "plugin"
        assert report[name]["available"] is False
        assert report[name]["reason"].startswith(said)
        assert report[name]["reason"].endswith(f"({name} 1.0; to do without it: pip uninstall {name})")
    assert "twin" not in {b["name"] for b in collage.json("backends") if b["kind"] != "plugin"}
    assert report["dnnl"]["available"] is True
    assert report["abacus"]["reason"] == "its library is not here"
    slow = [part for name in ("onnxruntime", "openvino", "tvm") for part in ("--exclude", name)]
    placed = collage.json("optimize", model, "--threads", "1", "--rounds", "4", *slow)
    assert {g["backend"] for g in placed["groups"]} <= {"dnnl", "reference"}
    _, told = collage.start("optimize", model, "--rounds", "4", "--backends", "reference").communicate()
    for name, said in _SAID.items():
        assert f"plugin {name!r} is left out, or a part of it: {said}" in told
    unknown = refused("optimize", model, "--backends", "import_raises")
    assert "plugin 'import_raises' failed: RuntimeError: broken on purpose (import_raises 1.0; " in unknown
    assert refused("optimize", model, "--backends", "abacus,dnnl") == (
        "collage: backend 'abacus' is not available: its library is not here"
    )
    assert "unknown backend 'Info'; installed: abacus, cublas, " in refused(
        "optimize", model, "--backends", "Info"
    )
    assert "unknown backend 'quick'" in refused("optimize", model, "--pin", "relu=quick")
    assert "unknown backend 'quick'" in refused("optimize", model, "--exclude", "quick")


def test_modules_that_are_named_by_hand_and_fail(
    installed: Path, collage: Collage, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from collage_core.plugins import default_registry as r; r().backends; print(r().failures)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "COLLAGE_PLUGINS": ",".join([*_SAID, "a_module_that_is_not"])},
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert all(said in result.stdout for said in _SAID.values())
    assert "No module named 'a_module_that_is_not'" in result.stdout


@pytest.mark.ci
def test_a_bundle_whose_backend_is_not_available(
    installed: Path, collage: Collage, model: Path, refused: Refused
) -> None:
    bundle = collage.folder / "m.collage"
    collage.run("optimize", model, "--threads", "1", "--rounds", "4", "--backends", "reference", "-o", bundle)
    code = """
import dataclasses, sys
from collage_core import save
from collage_core.runtime import read
b = read(sys.argv[1])
groups = tuple(dataclasses.replace(g, backend="abacus") for g in b.placement.groups)
save(dataclasses.replace(b, placement=dataclasses.replace(b.placement, groups=groups)), sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", code, str(bundle)], check=True)
    for command in ("run", "bench"):
        assert refused(command, bundle) == (
            f"collage: {bundle}: its backend 'abacus' is not available here: its library is not here"
        )


class _Later(Backend):
    name = "later"

    def info(self) -> BackendInfo:
        raise AssertionError("it is not asked")

    def variants(self, subgraph: object, target: object) -> Any:
        raise NotImplementedError

    def build(self, subgraph: object, variant: object, target: object) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        (1, "AssertionError: it is not asked"),
        (
            2,
            "BackendError: backend 'later' needs contract 2, and collage-core 0.1.0 has 1: pip install",
        ),
        ("2", "TypeError: backend 'later' needs contract '2', which is no version"),
        (True, "TypeError: backend 'later' needs contract True, which is no version"),
    ],
)
def test_one_that_needs_a_later_contract_is_left_out(
    contract: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plugin:
        @hookimpl
        def collage_backends(self) -> list[Backend]:
            return [_Later()]

    monkeypatch.setattr(_Later, "contract", contract)
    registry = Registry([Plugin()], entry_points=False)
    assert list(registry.backends) == ["reference"]
    (why,) = registry.failures.values()
    assert why.startswith(said)


class _Absent(Backend):
    name = "Abacus"

    def info(self) -> BackendInfo:
        return BackendInfo(
            self.name, BackendKind.OPERATOR, version="1", library_version=None, reason="no beads"
        )

    def variants(self, subgraph: Any, target: Any) -> Any:
        return []

    def build(self, subgraph: Any, variant: Any, target: Any) -> Any:
        raise NotImplementedError


def test_from_python(tmp_path: Path) -> None:
    class Plugin:
        @hookimpl
        def collage_backends(self) -> list[Backend]:
            return [_Absent()]

    registry = Registry([Plugin()], entry_points=False)
    with pytest.raises(BackendError, match="backend 'Abacus' is not available: no beads"):
        optimize(relu_model(), backends=["abacus"], registry=registry, costs=tmp_path / "costs")
    with pytest.raises(UnknownBackendError, match="unknown backend 'quick'; installed: abacus, reference"):
        optimize(relu_model(), backends=["quick"], registry=registry, costs=tmp_path / "costs")
    assert not (tmp_path / "costs").exists()
