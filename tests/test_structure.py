"""What keeps the house in order: core knows no vendor, nothing imports upwards, modules stay small, public
names are documented and stay.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import inspect
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from tests.conftest import Golden

_ROOT = Path(__file__).parents[1]
_CORE = _ROOT / "collage_core"
_RUN = _ROOT / "run" / "collage_run"
_CORE_MODULES = sorted(_CORE.rglob("*.py"))
_RUN_MODULES = sorted(_RUN.rglob("*.py"))
_MODULES = [*_CORE_MODULES, *_RUN_MODULES]
_VENDORS = re.compile(
    r"(?<![a-z])"
    r"(cublas|cuda|cudnn|dnnl|intel|mkl|ncnn|nvidia|onednn|onnxruntime|openvino|tensorrt|torch|tvm)(?![a-z])",
    re.I,
)

_MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "counted": set(),
    "folders": set(),
    "private_files": {"folders"},
    "writable": {"errors"},
    "sources": set(),
    "shared_library": set(),
    "formats": set(),
    "operators": set(),
    "target": {"errors", "formats"},
    "ir": {"errors", "formats", "operators"},
    "patterns": {"errors", "ir"},
    "rules": {"errors", "ir"},
    "devices": {"errors", "formats"},
    "backend": {"target", "devices", "errors", "formats", "ir", "patterns", "rules"},
    "peer": {"formats", "target"},
    "transfers": {"backend", "target", "devices", "errors", "formats", "ir", "placement"},
    "graph_library": {"backend", "errors", "formats", "ir", "peer"},
    "resizing": {"ir"},
    "strided": {"formats"},
    "quantizer": {"formats", "peer"},
    "priors": {"errors"},
    "hookspecs": {"backend", "devices", "ir", "peer", "priors", "quantizer"},
    "placement": {"backend", "target", "errors", "formats"},
    "rounding": {"backend", "formats", "ir", "placement"},
    "serving": {"counted", "errors"},
    "standard_output": set(),
    "probing": {"backend", "ir", "target"},
    "discovery": {"folders", "probing"},
    "plugins": {
        *("backend", "target", "devices", "discovery", "errors", "hookspecs", "ir", "placement"),
        *("peer", "priors", "quantizer", "reference", "standard_output", "transfers"),
    },
    "registration": {"errors", "patterns", "plugins", "rules"},
    "reference": {"backend", "target", "devices", "errors", "formats", "ir", "operators"},
    "worker": {"clock", "errors", "plugins"},
    "costs": {
        *("backend", "target", "devices", "errors", "folders", "formats", "ir", "plugins", "reference"),
        *("clock", "rounding", "sources", "worker"),
    },
    "candidates": {
        *("backend", "target", "errors", "formats", "ir", "patterns", "placement", "registration"),
        *("rounding", "rules", "standard_output"),
    },
    "search": {"backend", "candidates", "costs", "errors", "formats", "ir", "placement", "rounding"},
    "testing": {"backend", "costs", "target", "devices", "errors", "formats", "ir", "plugins", "reference"},
    "runtime": {
        *("backend", "target", "devices", "errors", "folders", "formats", "ir", "placement"),
        *("peer", "plugins", "private_files", "serving", "sources"),
    },
    "inference": {"background", "errors", "formats", "ir", "runtime"},
    "steering": {"candidates", "target", "errors", "formats", "ir", "placement", "plugins"},
    "measuring": {
        *("backend", "candidates", "costs", "target", "errors", "formats", "ir", "placement", "plugins"),
        *("clock", "peer", "priors", "rounding", "runtime", "search", "serving", "sources", "worker"),
    },
    "pipeline": {
        *("backend", "candidates", "costs", "target", "errors", "formats", "ir", "measuring", "placement"),
        *("clock", "peer", "plugins", "rounding", "runtime", "search", "serving", "sources", "steering"),
        "worker",
    },
    "onnx_backend": {
        *("backend", "candidates", "costs", "target", "errors", "formats", "ir", "measuring", "placement"),
        *("plugins", "runtime", "search", "worker"),
    },
    "doctor": {"backend", "costs", "counted", "target", "errors", "peer", "plugins"},
    "report": {
        *("backend", "candidates", "costs", "doctor", "errors", "formats", "ir", "measuring", "pipeline"),
        *("counted", "placement", "plugins", "rounding", "runtime", "search", "serving"),
    },
    "background": {
        *("candidates", "clock", "costs", "errors", "formats", "ir", "measuring", "pipeline", "placement"),
        *("plugins", "report", "runtime", "target", "worker", "writable"),
    },
    "cli": {
        *("candidates", "costs", "counted", "target", "doctor", "errors", "formats", "ir", "measuring"),
        *("pipeline", "placement", "plugins", "report", "runtime", "serving", "steering", "worker"),
        "writable",
    },
}
"""Packages and modules of core, and what each may import of core besides itself."""

_FACES = (
    "collage_core",
    "collage_run",
    "collage_run.restoring",
    *(
        f"collage_core.{name}"
        for name in _MAY_IMPORT
        if name not in ("cli", "counted", "doctor", "measuring", "pipeline", "report", "writable")
    ),
    "collage_core.ir.passes",
)
"""Where public names come from; whatever else core has is private to its package."""


def _module_name(path: Path) -> str:
    top = _RUN.parent if path in _RUN_MODULES else _ROOT
    return ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


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


@pytest.mark.parametrize("path", _CORE_MODULES, ids=_relative)
def test_packages_import_downwards_only(path: Path) -> None:
    package = path.relative_to(_CORE).parts[0].removesuffix(".py")
    if package == "__init__":  # the public API, which collects
        return
    assert package in _MAY_IMPORT, f"say in this test what {package} may import"
    for name in _imports_of(path):
        parts = name.split(".")
        known = ("collage_core", "collage_run")
        assert not parts[0].startswith("collage_") or parts[0] in known, f"core imports {name}"
        if parts[0] == "collage_core" and parts[1] != package:
            assert parts[1] in _MAY_IMPORT[package], f"{_relative(path)} imports {name}"


def test_import_direction_is_a_direction() -> None:
    """What the table allows has no cycle, and it names nothing that is not there."""
    tuple(graphlib.TopologicalSorter(_MAY_IMPORT).static_order())
    there = {path.relative_to(_CORE).parts[0].removesuffix(".py") for path in _CORE_MODULES}
    assert set(_MAY_IMPORT) == there - {"__init__"}


def test_modules_import_in_one_direction() -> None:
    """No two need each other, be it inside of functions or for types only. Packages, which collect, do not
    count.
    """
    of_name = {_module_name(path): path for path in _MODULES if path.name != "__init__.py"}
    needed = {name: {i for i in _imports_of(path) if i in of_name} for name, path in of_name.items()}
    assert sum(map(len, needed.values())) > len(needed)
    tuple(graphlib.TopologicalSorter(needed).static_order())


def test_the_ir_stands_at_the_bottom() -> None:
    above = set(_MAY_IMPORT) - {"ir", "errors", "formats", "operators"}
    for path in (_CORE / "ir").rglob("*.py"):
        assert not above & {
            name.split(".")[1] for name in _imports_of(path) if name.startswith("collage_core.")
        }


_PLUGIN_MODULES = sorted((_ROOT / "plugins").glob("*/collage_*/**/*.py"))
_SHARED = "collage_cuda"
"""The device that backends for NVIDIA's GPUs share; docs/adr/0043."""


@pytest.mark.parametrize("path", _PLUGIN_MODULES, ids=_relative)
def test_plugins_import_core_and_themselves_only(path: Path) -> None:
    plugin, own = path.relative_to(_ROOT / "plugins").parts[:2]
    project = tomllib.loads((_ROOT / "plugins" / plugin / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    asked = " ".join([*project["dependencies"], *(r for extra in extras for r in extra)])
    shared = {_SHARED} if _SHARED.replace("_", "-") in asked else set()
    for name in _imports_of(path):
        package = name.split(".")[0]
        known = {"collage_core", "collage_run", own, *shared}
        assert not package.startswith("collage_") or package in known, f"{own} imports {name}"


_NEEDED_TO_RUN = {"numpy", "ml_dtypes"}
_RELEASED = ("run", "page", "benchmarks", "conformance", "meta")
"""Folders of packages beside core and the plugins."""


@pytest.mark.parametrize("path", _RUN_MODULES, ids=_relative)
def test_what_runs_needs_no_more_than_numpy(path: Path) -> None:
    for name in _imports_of(path):
        package = name.split(".")[0]
        known = package in sys.stdlib_module_names or package in _NEEDED_TO_RUN
        assert known or package == "collage_run", f"{_relative(path)} imports {name}"


_RUN_PARTS = [
    (plugin.parent, point.partition(":")[0])
    for plugin in sorted((_ROOT / "plugins").glob("*/pyproject.toml"))
    for point in tomllib.loads(plugin.read_text())["project"]["entry-points"].get("collage.run", {}).values()
]


@pytest.mark.parametrize(("plugin", "module"), _RUN_PARTS, ids=lambda part: str(getattr(part, "name", part)))
def test_what_restores_kernels_needs_nothing_of_core(plugin: Path, module: str) -> None:
    """It is imported where `collage-run` is installed, and the plugin, and nothing else of ours."""
    seen: set[str] = set()
    wanted = [module]
    while wanted:
        name = wanted.pop()
        seen.add(name)
        file = plugin / Path(*name.split("."))
        path = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        for imported in [*_imports_of(path), name.rpartition(".")[0]]:
            package = imported.split(".")[0]
            assert package not in ("collage_core", "onnx"), f"{_relative(path)} imports {imported}"
            if package == plugin.name and imported not in seen:
                wanted.append(imported)


def test_there_are_plugins_to_check() -> None:
    assert len(_RUN_PARTS) >= 5
    assert len({p.relative_to(_ROOT / "plugins").parts[0] for p in _PLUGIN_MODULES}) >= 3


_PACKAGES = {
    project["name"]: (folder, project)
    for folder in (_ROOT, *(_ROOT / name for name in _RELEASED), *sorted((_ROOT / "plugins").iterdir()))
    if (folder / "pyproject.toml").exists()
    for project in [tomllib.loads((folder / "pyproject.toml").read_text())["project"]]
}


@pytest.mark.parametrize("name", _PACKAGES)
def test_packages_ask_for_each_other_as_they_are(name: str) -> None:
    """In exactly the version that stands beside them, which heads their list of changes, too."""
    folder, project = _PACKAGES[name]
    for requirement in map(Requirement, project["dependencies"]):
        if requirement.name in _PACKAGES:
            version = _PACKAGES[requirement.name][1]["version"]
            assert str(requirement.specifier) == f"=={version}", f"{name} asks for {requirement}"
    titles = [line for line in (folder / "CHANGELOG.md").read_text().splitlines() if line.startswith("#")]
    assert titles[0] == f"# Changes of {name}"
    assert titles[1].startswith(f"## {project['version']}")


def test_the_meta_package_brings_the_others() -> None:
    brought = {Requirement(r).name for r in _PACKAGES["collage-cpu"][1]["dependencies"]}
    plugins = {name for name, (folder, _) in _PACKAGES.items() if folder.parent.name == "plugins"}
    too_large = {"collage-mkl"}  # 1 GB
    for_gpus = {name for name in plugins if any("GPU" in c for c in _PACKAGES[name][1]["classifiers"])}
    assert brought == {"collage-core", *plugins} - too_large - for_gpus


def _imports_of(path: Path) -> list[str]:
    """Names of modules that a module imports; `from collage_core import x` counts as `collage_core.x`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{_relative(path)} has a relative import"
            names = [f"{node.module}.{a.name}" for a in node.names]
            found += names if node.module == "collage_core" else [node.module]
    return found


@pytest.mark.parametrize("path", _MODULES, ids=_relative)
def test_what_a_module_offers_is_there(path: Path) -> None:
    module = importlib.import_module(_module_name(path))
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name), f"{module.__name__} has no {name}"


def test_public_names(golden: Golden) -> None:
    """A name that comes, goes or is renamed is noticed."""
    lines = []
    for face in _FACES:
        names = importlib.import_module(face).__all__
        assert len(set(names)) == len(names)
        lines += [face, *(f"  {name}" for name in sorted(names))]
    golden("public_names.txt", "\n".join(lines))


@pytest.mark.parametrize("face", _FACES)
def test_public_names_are_there_and_documented(face: str) -> None:
    module = importlib.import_module(face)
    assert module.__doc__
    for name in module.__all__:
        assert hasattr(module, name), f"{face} has no {name}"
        thing = getattr(module, name)
        is_ours = isinstance(thing, type | FunctionType) and thing.__module__.startswith(
            ("collage_core", "collage_run")
        )
        homes = [Path(inspect.getfile(sys.modules[thing.__module__]))] if is_ours else _MODULES
        assert any(name in _documented(path) for path in homes), f"{name} of {face} has no docstring"


@functools.cache
def _documented(path: Path) -> list[str]:
    """Classes, functions and values of a module with a docstring of their own."""
    body = ast.parse(path.read_text()).body
    found = []
    for node, following in zip(body, [*body[1:], None], strict=False):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_text(following):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [t.id for t in targets if isinstance(t, ast.Name)]
    return found


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_files_are_small() -> None:
    for path in sorted(_ROOT.rglob("*.py")):
        if not any(part.startswith(".") or part == "build" for part in path.relative_to(_ROOT).parts):
            length = len(path.read_text().splitlines())
            assert length <= 400, f"{_relative(path)} has {length} lines: which two things is it?"


_MANY_OPTIONS = {"optimize", "tune", "quantise", "check_group"}
"""What people call with keyword-only options, of which each has a default."""


def test_functions_take_few_parameters() -> None:
    """Seven at most; an operator's `_run` is called with the attributes that ONNX gives it."""
    for path in _MODULES:
        of_onnx = {"_run"} if "operators" in path.parts else set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name not in _MANY_OPTIONS | of_onnx:
                args = node.args
                names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
                count = len([n for n in names if n not in ("self", "cls")])
                assert count <= 7, f"{_relative(path)}:{node.lineno}: {node.name} takes {count}"
