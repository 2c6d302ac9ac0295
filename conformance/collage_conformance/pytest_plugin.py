"""The kit's options, its parameters, and the table at the end. Loaded by every pytest where the kit is
installed: it imports nothing of Collage before it is needed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collage_conformance.results import Results, has_block, write_block

__all__: list[str] = []

_OF_KIT = "collage"
_NO_PARAMETERS = SimpleNamespace(params={})


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("collage", "conformance of a Collage backend")
    group.addoption("--collage-backend", metavar="NAME", default="", help="the backend to check")
    group.addoption(
        "--collage-cases",
        metavar="N",
        type=int,
        default=None,
        help="of each operator so many samples of each source at most (default: all)",
    )
    # Texts and numbers: they travel to the processes of pytest-xdist.
    group.addoption("--collage-json", metavar="FILE", help="write what the tables say as JSON")
    group.addoption(
        "--collage-readme",
        metavar="FILE",
        help="write the table into it, between <!-- conformance: NAME --> and <!-- /conformance -->",
    )
    group.addoption(
        "--require-delegated",
        metavar="OP,OP",
        default="",
        help="operators that the backend must take",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Summary())
    if name := config.getoption("collage_backend"):
        from collage_core.errors import UnknownBackendError
        from collage_core.plugins import default_registry

        try:
            default_registry().backend(name)
        except UnknownBackendError as error:
            raise pytest.UsageError(f"--collage-backend: {error}") from None
        readme = config.getoption("collage_readme")
        if readme is not None and not has_block(Path(readme), name):
            raise pytest.UsageError(f"--collage-readme: {_no_place(Path(readme), name)}")
    if config.getoption("require_delegated"):
        from collage_conformance.kit import required_operators

        if unknown := required_operators(config) - set(_operators()):
            raise pytest.UsageError(
                f"--require-delegated: no operators of ONNX: {', '.join(sorted(unknown))}"
            )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not _is_of_kit(metafunc.cls):
        return
    from collage_conformance.kit import CHAINS

    if "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", _operators())
    if "chain" in metafunc.fixturenames:
        metafunc.parametrize("chain", range(CHAINS))


def _operators() -> list[str]:
    import onnx.defs

    return sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated})


def _is_of_kit(cls: Any) -> bool:
    return any(base.__module__ == "collage_conformance.kit" for base in getattr(cls, "__mro__", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    cls: Any = getattr(item, "cls", None)
    if _is_of_kit(cls):
        backend, most = (item.config.getoption(o) for o in ("collage_backend", "collage_cases"))
        told = {
            "backend": cls.backend or backend,
            "check": getattr(item, "originalname", item.name).removeprefix("test_"),
            "operator": getattr(item, "callspec", _NO_PARAMETERS).params.get("operator", ""),
            "cases": most or cls.cases,
        }
        report.user_properties.append((_OF_KIT, json.dumps(told)))
    return report


@dataclass(slots=True, eq=False)
class _Summary:
    """By backend, what its checks found."""

    results: dict[str, Results] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if _OF_KIT not in properties or (report.when != "call" and report.passed):
            return
        told = json.loads(str(properties[_OF_KIT]))
        if not told["backend"]:
            return
        self.results.setdefault(told["backend"], Results(told["cases"])).add(
            told["check"],
            report.outcome,
            int(str(properties.get("groups", 0))),
            operator=told["operator"] if told["check"] == "operator" else "",
            fault=_message(report) if report.failed else "",
        )

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if not self.results:
            return
        if (file := config.getoption("collage_json")) is not None:
            told = {b: found.in_order(_checks()).to_json() for b, found in self.results.items()}
            Path(file).write_text(json.dumps(told, indent=1) + "\n")
        for backend, found in self.results.items():
            results = found.in_order(_checks())
            terminalreporter.section(f"conformance of {backend}")
            for line in results.lines():
                terminalreporter.write_line(line)
            if (file := config.getoption("collage_readme")) is not None:
                terminalreporter.write_line(_written(Path(file), backend, results))


def _written(file: Path, backend: str, results: Results) -> str:
    """The block of that backend in the file, unless only some of the checks have run."""
    from collage_conformance.subject import described

    if not has_block(file, backend):
        return _no_place(file, backend)
    if left_out := [check for check in _checks() if check not in results.ended]:
        return f"{file} is left as it is, for these checks did not run: {', '.join(left_out)}"
    write_block(file, backend, results.markdown(described(backend)))
    return f"written to {file}"


def _checks() -> list[str]:
    """Names of the kit's, as it has them."""
    from collage_conformance.kit import Conformance

    return [name.removeprefix("test_") for name in vars(Conformance) if name.startswith("test_")]


def _no_place(file: Path, backend: str) -> str:
    return f"{file} has no lines <!-- conformance: {backend} --> and <!-- /conformance -->"


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).removeprefix("AssertionError: ")
