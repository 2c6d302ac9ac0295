"""The kit's options, its parameters, and the table at the end. Loaded by every pytest where the kit is
installed: it imports nothing of Collage before it is needed.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from collage_conformance.results import Results, has_block, write_block

__all__: list[str] = []

_OF_KIT = "collage"


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
            config.option.collage_backend = default_registry().backend(name).name  # as it writes it
        except UnknownBackendError as error:
            raise pytest.UsageError(f"--collage-backend: {error}") from None
    readme, name = config.getoption("collage_readme"), config.getoption("collage_backend")
    # Of a class that names its own backend it is known at the end which block that is.
    if readme is not None and (reason := _no_place(Path(readme), name)) is not None:
        raise pytest.UsageError(f"--collage-readme: {reason}")
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
        told = {"backend": (cls.backend or backend).lower(), "cases": most or cls.cases}
        report.user_properties.append((_OF_KIT, json.dumps(told)))
    return report


@dataclass(slots=True, eq=False)
class _Summary:
    """By backend, what its checks found."""

    results: dict[str, Results] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    """The backend of each, by its node's id."""
    crashed: list[pytest.TestReport] = field(default_factory=list)
    """What pytest-xdist says of a process that has died, which is nothing but the test's id and the cause."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if _OF_KIT not in properties:
            if report.failed:
                self.crashed.append(report)
            return
        told = json.loads(str(properties[_OF_KIT]))
        backend = told["backend"]
        if not backend:
            return
        self.classes[_split(report.nodeid)[0]] = backend
        self.results.setdefault(backend, Results(told["cases"])).limit(told["cases"])
        if report.when == "call" or not report.passed:
            self._add(backend, report, int(str(properties.get("groups", 0))))

    def _add(self, backend: str, report: pytest.TestReport, groups: int) -> None:
        _, check, parameter = _split(report.nodeid)
        operator = parameter if check == "operator" else ""
        fault = _message(report) if report.failed else ""
        self.results[backend].add(check, report.outcome, groups, operator=operator, fault=fault)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        for report in self.crashed:
            if (backend := self.classes.get(_split(report.nodeid)[0])) is not None:
                self._add(backend, report, 0)
        if not self.results:
            return
        expected = _expected()
        found = {backend: results.in_order(list(expected)) for backend, results in self.results.items()}
        if (file := config.getoption("collage_json")) is not None:
            told = {backend: results.to_json() for backend, results in found.items()}
            Path(file).write_text(json.dumps(told, indent=1) + "\n")
        for backend, results in found.items():
            terminalreporter.section(f"conformance of {backend}")
            for line in results.lines():
                terminalreporter.write_line(line)
            if (file := config.getoption("collage_readme")) is not None:
                terminalreporter.write_line(_written(Path(file), backend, results, expected))


def _split(nodeid: str) -> tuple[str, str, str]:
    """The class, the check, and what it is about, "" where that is nothing more."""
    head, bracket, parameter = nodeid.partition("[")
    cls, _, name = head.rpartition("::")
    return cls, name.removeprefix("test_"), parameter.removesuffix("]") if bracket else ""


def _expected() -> dict[str, int]:
    """The kit's checks, as it has them, and how many tests each is."""
    from collage_conformance.kit import CHAINS, Conformance

    many = {"operator": len(_operators()), "chain": CHAINS}
    found = {}
    for name, function in vars(Conformance).items():
        if name.startswith("test_"):
            parameters = inspect.signature(function).parameters
            found[name.removeprefix("test_")] = max(many.get(p, 1) for p in parameters)
    return found


def _written(file: Path, backend: str, results: Results, expected: Mapping[str, int]) -> str:
    """The block of that backend in the file, unless fewer tests of the kit have run than are `expected`."""
    from collage_conformance.subject import described
    from collage_core.errors import CollageError

    if reason := _no_place(file, backend):
        return reason
    left_out = [c for c, count in expected.items() if results.ended.get(c, Counter()).total() < count]
    if left_out:
        return f"{file} is left as it is, for these checks did not run as a whole: {', '.join(left_out)}"
    try:
        write_block(file, backend, results.markdown(described(backend)))
    except (CollageError, OSError) as error:
        return f"{file} is left as it is: {error}"
    return f"written to {file}"


def _no_place(file: Path, backend: str) -> str | None:
    """Why that backend's table has no place in the file, or, where nobody is named, why nothing has."""
    try:
        if not has_block(file, backend) and backend:
            return f"{file} has no lines <!-- conformance: {backend} --> and <!-- /conformance -->"
    except (OSError, UnicodeDecodeError) as error:
        return f"{file} cannot be read: {error}"
    return None


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).removeprefix("AssertionError: ")
