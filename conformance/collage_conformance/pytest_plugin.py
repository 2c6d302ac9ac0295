"""The kit's options, its parameters, and the table at the end. Loaded by every pytest where the kit is
installed: it imports nothing of Collage before it is needed.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__: list[str] = []

_CHECK = "collage_check"
_OUTCOMES = ("passed", "failed", "skipped")


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
    group.addoption("--collage-json", metavar="FILE", help="write what the table says as JSON")
    group.addoption(
        "--require-delegated",
        metavar="OP,OP",
        default="",
        help="operators that the backend must take",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Results())
    if name := config.getoption("collage_backend"):
        from collage_core.errors import UnknownBackendError
        from collage_core.plugins import default_registry

        try:
            default_registry().backend(name)
        except UnknownBackendError as error:
            raise pytest.UsageError(f"--collage-backend: {error}") from None
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
    if _is_of_kit(getattr(item, "cls", None)):
        report.user_properties.append((_CHECK, getattr(item, "originalname", item.name)))
    return report


@dataclass(slots=True, eq=False)
class _Results:
    """By check: how its tests ended, how many groups they looked at, and what is wrong."""

    ended: dict[str, Counter[str]] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        check = str(told.get(_CHECK, "")).removeprefix("test_")
        if not check or (report.when != "call" and report.passed):
            return
        self.ended.setdefault(check, Counter())[report.outcome] += 1
        looked_at = int(str(told.get("groups", 0)))
        self.groups[check] += looked_at
        if looked_at and check == "operator":
            self.taken.append(report.nodeid.rpartition("[")[2].rstrip("]"))
        if report.failed:
            self.faults.setdefault(check, []).append(_message(report))

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if not self.ended:
            return
        told = self._as_json()
        if (file := config.getoption("collage_json")) is not None:
            Path(file).write_text(json.dumps(told, indent=1) + "\n")
        terminalreporter.section("conformance")
        width = max(map(len, told["checks"]))
        for name, check in told["checks"].items():
            mark = "failed" if check["failed"] else "passed" if check["passed"] else "skipped"
            counts = ", ".join(f"{check[o]} {o}" for o in _OUTCOMES if check[o])
            groups = f", {check['groups']} groups" if check["groups"] else ""
            terminalreporter.write_line(f"{name:{width}}  {mark:7}  {counts}{groups}")
        operators = told["operators"]
        terminalreporter.write_line(f"it takes {len(operators)} operators: {', '.join(operators)}")

    def _as_json(self) -> dict[str, Any]:
        checks = {
            name: {
                **{o: counts.get(o, 0) for o in _OUTCOMES},
                "groups": self.groups[name],
                "faults": self.faults.get(name, []),
            }
            for name, counts in self.ended.items()
        }
        failed = sorted(name for name, told in checks.items() if told["failed"])
        return {"checks": checks, "failed": failed, "operators": sorted(self.taken)}


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).removeprefix("AssertionError: ")
