"""`collage new-backend`: what it writes is a backend that is right; and what it refuses."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collage_core.cli.main import main
from collage_core.cli.skeleton import KINDS

_ROOT = Path(__file__).parents[2]
_MOST_LINES, _MOST_LINES_OF_A_DEVICE = 40, 100
_OPTIONS = {"operator": [], "graph": ["--graph"], "device": ["--device"]}
_LIMIT_S = 600


def _new(folder: Path, name: str, *more: str) -> int:
    return main(["new-backend", name, "-o", str(folder), *more])


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_of_few_lines(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "acme"
    assert _new(folder, "acme_fast", *_OPTIONS[kind], "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["backend"], told["kind"], told["folder"]) == ("acme_fast", kind, str(folder))
    assert {f for f in told["files"] if f.endswith(".py")} == {
        *(f"collage_acme_fast/{f}.py" for f in ("__init__", "backend", "plugin")),
        *(["collage_acme_fast/device.py"] if kind == "device" else []),
        "tests/test_backend.py",
    }
    assert "$" not in "".join((folder / f).read_text() for f in told["files"])
    assert "class AcmeFastBackend(Backend):" in (folder / "collage_acme_fast/backend.py").read_text()
    of_backend = [p for p in folder.glob("collage_acme_fast/*.py") if p.stem != "device"]
    assert sum(map(_lines, of_backend)) <= _MOST_LINES
    assert all(_lines(p) <= _MOST_LINES_OF_A_DEVICE for p in folder.glob("collage_acme_fast/device.py"))


def _lines(path: Path) -> int:
    """Of code: no docstrings, comments, imports or empty lines."""
    tree = ast.parse(path.read_text())
    statements = [n for n in ast.walk(tree) if isinstance(n, ast.stmt)]
    kept = [n for n in statements if not isinstance(n, ast.Import | ast.ImportFrom) and not _is_text(n)]
    compound = (ast.FunctionDef, ast.ClassDef, ast.For, ast.If)
    lines = {n.lineno for n in kept if isinstance(n, compound)}
    for n in kept:
        if not isinstance(n, compound):
            lines |= set(range(n.lineno, (n.end_lineno or n.lineno) + 1))
    return len(lines)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@pytest.mark.parametrize("name", ["Acme", "1st", "a-b", "class", "../up", "a b", "self_", "a__b", 65 * "a"])
def test_what_is_no_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _new(tmp_path / "new", name) == 1
    assert "is no name for a backend" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["reference", "dnnl", "core", "view", "conformance", "cpu"])
def test_names_that_are_taken(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _new(tmp_path / "new", name) == 1
    assert capsys.readouterr().err == f"collage: the name {name!r} is taken\n"


def test_one_kind_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        _new(tmp_path / "new", "acme", "--graph", "--device")
    assert ended.value.code == 2


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    for place in (tmp_path, tmp_path / "mine"):
        assert _new(place, "acme") == 1
        assert "is there already" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_from_nothing_to_a_green_kit(kind: str, tmp_path: Path) -> None:
    """What docs/writing-a-plugin.md begins with, line by line, in an environment of its own."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COLLAGE"))}
    variables |= {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
        return done.stdout

    packages = " ".join(str(_ROOT / p) for p in ("run", ".", "benchmarks", "conformance"))
    run(f"python -m pip install --quiet {packages}")
    page = (_ROOT / "docs" / "writing-a-plugin.md").read_text()
    first, kit = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [*first.splitlines(), *kit.splitlines()]
    assert lines[0] == "collage new-backend acme"
    lines[0] = " ".join([lines[0], *_OPTIONS[kind]])
    told = [run(line) for line in lines]
    assert any("acme" in text for text in told)
    assert re.search(r"operator +passed", told[-1]), told[-1]
