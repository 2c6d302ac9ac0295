"""What matching gives: what was found, or the nearest miss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from collage_core.errors import Refusal
from collage_core.ir import Operator, Subgraph
from collage_core.patterns.pattern import Pattern

__all__ = ["Bindings", "Match", "MatchResult", "NoMatch"]


class Bindings(Mapping[Pattern, Operator | str]):
    """What each part of a pattern stands for: an `Operator`, or the name of a value (wildcards, constants).

    Looked up by the pattern object itself; where that is not at hand, by an equal one, if only one part is
    equal to it.
    """

    def __init__(self, pairs: tuple[tuple[Pattern, Operator | str], ...]) -> None:
        self._pairs = pairs

    def __getitem__(self, pattern: Pattern) -> Operator | str:
        for known, target in self._pairs:
            if known is pattern:
                return target
        equal = [target for known, target in self._pairs if known == pattern]
        if len(equal) != 1:
            raise KeyError(pattern)
        return equal[0]

    def __iter__(self) -> Iterator[Pattern]:
        return (pattern for pattern, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"Bindings({', '.join(f'{pattern!r}: {target}' for pattern, target in self._pairs)})"


@dataclass(frozen=True, slots=True)
class Match:
    """A part of the graph that a pattern describes: convex, and nothing leaks from it.

    subgraph: its nodes; its outputs are those the pattern declares and somebody reads. root: the operator at
    which the pattern ends (for several outputs, the first's). bindings: the pattern's parts; those of an
    alternative not taken are missing.
    """

    pattern: Pattern
    root: Operator
    subgraph: Subgraph
    bindings: Bindings

    def __str__(self) -> str:
        return f"{self.subgraph} at {self.root}"

    def operator(self, pattern: Pattern) -> Operator:
        """The operator that a part of the pattern stands for.

        KeyError if that part was not used, TypeError if it stands for a value.
        """
        target = self.bindings[pattern]
        if isinstance(target, Operator):
            return target
        raise TypeError(f"{pattern!r} stands for the value {target!r}, not for an operator")


@dataclass(frozen=True, slots=True)
class NoMatch(Refusal):
    """The nearest miss: of all ways to match, the one that got furthest. False as a condition, as the None of
    `re.match` is.

    node: the operator at which it failed; `reason` says what was expected there. progress: parts of the
    pattern that matched before.
    expected: the part of the pattern that did not; None where all did, but the set is no legal group.
    """

    progress: int = 0
    expected: Pattern | None = None

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class MatchResult:
    """All matches of a pattern in a graph, and a miss for every other possible root."""

    matches: tuple[Match, ...]
    misses: tuple[NoMatch, ...]
