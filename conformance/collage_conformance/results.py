"""What the checks of one backend found: as JSON, as lines at the end of a run, and as a block of a README."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = ["Results", "has_block", "write_block"]

_OUTCOMES = ("passed", "failed", "skipped")
_WIDTH = 120
"""Of prose, in characters."""


@dataclass(slots=True, eq=False)
class Results:
    """By check: how its tests ended, how many groups they looked at, and what is wrong.

    cases: of each operator so many samples from each source at most, all where None. taken: operators of
    which something was built.
    """

    cases: int | None
    ended: dict[str, Counter[str]] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def add(self, check: str, outcome: str, groups: int, *, operator: str = "", fault: str = "") -> None:
        """How one test of a check has ended. operator: the one that it is about. fault: why it failed."""
        self.ended.setdefault(check, Counter())[outcome] += 1
        self.groups[check] += groups
        if groups and operator:
            self.taken.add(operator)
        if fault:
            self.faults.setdefault(check, []).append(fault)

    def limit(self, cases: int | None) -> None:
        """Some of it was looked at with no more than these."""
        if cases is not None:
            self.cases = cases if self.cases is None else min(cases, self.cases)

    def in_order(self, checks: Sequence[str]) -> Results:
        """The same, these checks first, in that order."""
        order = dict.fromkeys([*(check for check in checks if check in self.ended), *self.ended])
        return replace(self, ended={check: self.ended[check] for check in order})

    def to_json(self) -> dict[str, Any]:
        checks = {
            name: {
                **{o: counts.get(o, 0) for o in _OUTCOMES},
                "groups": self.groups[name],
                "faults": self.faults.get(name, []),
            }
            for name, counts in self.ended.items()
        }
        failed = sorted(name for name, told in checks.items() if told["failed"])
        return {"checks": checks, "failed": failed, "operators": sorted(self.taken), "cases": self.cases}

    def lines(self) -> list[str]:
        width = max(map(len, self.ended), default=0)
        found = [f"{n:{width}}  {self._mark(n):7}  {', '.join(self._counts(n))}" for n in self.ended]
        return [*found, self._operators()]

    def markdown(self, about: Mapping[str, str]) -> str:
        """about: what the run is told with, by what it is."""
        rows = [
            f"| `{n}` | {self._mark(n)} | {' | '.join(str(ended[o] or '') for o in _OUTCOMES)} "
            f"| {self.groups[n] or ''} |"
            for n, ended in self.ended.items()
        ]
        told = "; ".join(f"{what} {text}" for what, text in about.items())
        cases = "all cases" if self.cases is None else f"at most {self.cases} from each source"
        return "\n".join(
            [
                f"| check | | {' | '.join(_OUTCOMES)} | groups |",
                "|---|---|---|---|---|---|",
                *rows,
                "",
                _wrapped(f"{self._operators()}."),
                "",
                _wrapped(f"Samples of each operator: {cases}. {told}."),
                "",
            ]
        )

    def _mark(self, check: str) -> str:
        ended = self.ended[check]
        return "failed" if ended["failed"] else "passed" if ended["passed"] else "skipped"

    def _counts(self, check: str) -> list[str]:
        groups = [f"{self.groups[check]} groups"] if self.groups[check] else []
        return [f"{self.ended[check][o]} {o}" for o in _OUTCOMES if self.ended[check][o]] + groups

    def _operators(self) -> str:
        names = ", ".join(sorted(self.taken)) or "none of those it was shown alone"
        return f"Operators that it takes ({len(self.taken)}): {names}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def has_block(file: Path, backend: str) -> bool:
    """Whether there is a place for that backend's table in it. OSError, and UnicodeDecodeError."""
    return _block(backend).search(_read(file)) is not None


def write_block(file: Path, backend: str, markdown: str) -> None:
    """What stands between `<!-- conformance: BACKEND -->` and `<!-- /conformance -->`, written anew. Ends of
    lines stay as they are elsewhere. OSError, and UnicodeDecodeError.
    """
    whole = _block(backend).sub(lambda m: f"{m[1]}{markdown}{m[2]}", _read(file))
    with file.open("w", encoding="utf-8", newline="") as stream:
        stream.write(whole)


def _read(file: Path) -> str:
    with file.open(encoding="utf-8", newline="") as stream:
        return stream.read()


def _block(backend: str) -> re.Pattern[str]:
    """It ends before another begins."""
    name, text = re.escape(backend), r"(?:(?!<!-- conformance:).)*?"
    return re.compile(rf"(<!-- conformance: {name} -->\r?\n){text}(<!-- /conformance -->)", re.DOTALL)
