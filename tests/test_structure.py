"""What keeps the house in order: core knows no vendor, nothing imports upwards, modules stay small."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_CORE = _ROOT / "collage_core"
_MODULES = sorted(_CORE.rglob("*.py"))
_VENDORS = re.compile(
    r"(?<![a-z])(dnnl|onednn|openvino|onnxruntime|cudnn|cublas|tensorrt|tvm|mkl)(?![a-z])", re.I
)

_MAY_IMPORT = {
    "operators": set(),
    "ir": {"errors", "formats", "operators"},
    "patterns": {"errors", "ir"},
    "rules": {"errors", "ir"},
    "reference": {"backend", "device", "errors", "formats", "ir", "operators"},
    "worker": {"errors", "plugins"},
    "costs": {"backend", "device", "errors", "formats", "ir", "plugins", "reference", "worker"},
    "search": {
        "backend",
        "costs",
        "device",
        "errors",
        "formats",
        "ir",
        "patterns",
        "placement",
        "registration",
        "rules",
    },
    "runtime": {"backend", "device", "errors", "formats", "ir", "placement", "plugins"},
    "pipeline": {
        *(
            "backend",
            "costs",
            "device",
            "errors",
            "formats",
            "ir",
            "placement",
            "plugins",
            "runtime",
            "search",
        ),
    },
    "report": {"backend", "costs", "formats", "ir", "pipeline", "placement", "plugins"},
}
"""Packages of core and what each may import of core besides itself."""


def _relative(path: Path) -> str:
    return str(path.relative_to(_ROOT))


@pytest.mark.parametrize("path", _MODULES, ids=_relative)
def test_core_names_no_vendor_in_code(path: Path) -> None:
    documentation = (tokenize.COMMENT,)
    with tokenize.open(path) as file:
        source = file.read()
    docstrings = _docstring_lines(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in documentation or token.start[0] in docstrings:
            continue
        assert not _VENDORS.search(token.string), f"{_relative(path)}:{token.start[0]}: {token.string}"


def _docstring_lines(source: str) -> set[int]:
    """Lines of strings that stand alone: docstrings of modules, classes, functions and attributes."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


@pytest.mark.parametrize("path", _MODULES, ids=_relative)
def test_packages_import_downwards_only(path: Path) -> None:
    package = path.relative_to(_CORE).parts[0]
    if package not in _MAY_IMPORT:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        for name in _imported(node):
            parts = name.split(".")
            assert not parts[0].startswith("collage_") or parts[0] == "collage_core", f"core imports {name}"
            if parts[0] == "collage_core" and len(parts) > 1 and parts[1] != package:
                assert parts[1] in _MAY_IMPORT[package], f"{_relative(path)} imports {name}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def test_modules_are_small() -> None:
    files = [*_MODULES, *(_ROOT / "plugins").rglob("*.py"), *(_ROOT / "benchmarks").rglob("*.py")]
    for path in files:
        if "tests" not in path.parts:
            length = len(path.read_text().splitlines())
            assert length <= 500, f"{_relative(path)} has {length} lines: which two things is it?"
