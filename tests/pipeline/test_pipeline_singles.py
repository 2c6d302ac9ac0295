"""One backend on its own: a graph library gets the graph in as few groups as can be had."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collage_core import Graph, Placement, PlacementError, Target, plain_variant
from collage_core.backend import BackendKind
from collage_core.candidates import ALL_TAKEN, Candidate, CandidateSet
from collage_core.ir import Subgraph, from_model
from collage_core.measuring.bounding import Known
from collage_core.measuring.estimates import Hope, as_likely
from collage_core.pipeline.proof import Single
from collage_core.pipeline.singles import Looking, far_of, single
from collage_core.placement import Group
from collage_core.search import OpLevelSearch, SearchResult

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_TARGET = Target("cpu", 1)
_WHOLE, _ALL = True, False
Answers = Mapping[tuple[bool, tuple[str, ...]], str | list[str]]
"""By whether only the library's largest groups may be taken, and the backends: who gets each node, or why
nobody can.
"""


@pytest.fixture
def graph(parse: Parse) -> Graph:
    return from_model(parse("(float[8] x) => (float y) { [a] p = Relu(x) [b] q = Tan(p) [c] y = Abs(q) }"))


@dataclass(slots=True)
class _Told(Known):
    """What is guessed to be the best, and how long that takes: each guess after a measurement has the next of
    `guesses_ms`. failing: so many of the first guesses hold a kernel that fails when it is measured. partial:
    of so many no more than a part is measured.
    """

    answers: Answers = field(default_factory=dict)
    guesses_ms: Sequence[float] = (1.0,)
    unknown: int = 0
    measured: int = 0
    failing: int = 0
    partial: int = 0

    def guess(
        self,
        backends: Sequence[str] | None = None,
        allowed: Callable[[Candidate], bool] = lambda candidate: True,
        *,
        hoped_ms: Hope = as_likely,
    ) -> SearchResult:
        whole = not any(allowed(c) for c in self.candidates.candidates if c.origin != ALL_TAKEN)
        answer = self.answers[whole, tuple(backends or ())]
        if isinstance(answer, str):
            raise PlacementError(answer)
        groups = [
            Group(backend, (n.id,), plain_variant(Subgraph(self.candidates.graph, [n.id])))
            for backend, n in zip(answer, self.candidates.graph.nodes, strict=True)
        ]
        return SearchResult(Placement(tuple(groups), (), _TARGET, self.guesses_ms[self.measured]), None)

    def measure(
        self, placement: Placement, *, whatever: bool = False, races: bool = True, seen: bool = True
    ) -> bool:
        if self.measured == self.unknown:
            return False
        self.measured += 1
        return True

    def may_run(self, placement: Placement) -> bool:
        return self.measured > self.failing

    def unknown_kernels(self, placement: Placement) -> int:
        return int(self.measured <= self.partial)


_ONE, _BOTH = ("lib",), ("lib", "ref")


@pytest.mark.parametrize(
    ("answers", "backends", "reason"),
    [
        ({(_WHOLE, _ONE): ["lib"] * 3}, ["lib"] * 3, None),
        # The whole cannot be compiled, every operator can.
        ({(_WHOLE, _ONE): "too long", (_ALL, _ONE): ["lib"] * 3}, ["lib"] * 3, None),
        # It lacks Tan; the rest it takes as a whole.
        (
            {
                (_WHOLE, _ONE): "no Tan",
                (_ALL, _ONE): "no Tan",
                (_WHOLE, _BOTH): ["lib", "ref", "lib"],
                (_ALL, _BOTH): ["lib", "ref", "lib"],
            },
            ["lib", "ref", "lib"],
            "no Tan",
        ),
        # It lacks Tan, and what is before it cannot be compiled as a whole.
        (
            {
                (_WHOLE, _ONE): "too long",
                (_ALL, _ONE): "no Tan",
                (_WHOLE, _BOTH): ["ref", "ref", "lib"],
                (_ALL, _BOTH): ["lib", "ref", "lib"],
            },
            ["lib", "ref", "lib"],
            "no Tan",
        ),
        (
            {
                (_WHOLE, _ONE): "no Tan",
                (_ALL, _ONE): "no Tan",
                (_WHOLE, _BOTH): "nobody has Tan",
                (_ALL, _BOTH): "nobody has Tan",
            },
            None,
            "nobody has Tan",
        ),
    ],
)
def test_a_library_alone(
    graph: Graph, answers: Answers, backends: list[str] | None, reason: str | None
) -> None:
    known = _told(graph, answers=answers)
    found = single("lib", known)
    placed = [g.backend for g in found.placement.groups] if found.placement else None
    assert placed == backends
    assert found.alone == (backends == ["lib"] * 3)
    assert found.reason == reason
    assert not known.measured, "a guess will do"


@pytest.mark.parametrize(
    ("guesses_ms", "unknown", "measured", "why"),
    [
        ([9.0, 1.0, 1.0], 9, 0, "it is guessed to be far behind"),
        ([4.0, 4.5, 4.9], 9, 2, "no more than two looks"),
        ([4.0, 9.0, 1.0], 9, 1, "it was found to be far behind"),
        ([4.0, 4.5, 4.9], 1, 1, "nothing is left to be measured"),
    ],
)
def test_a_library_that_comes_near_is_measured(
    graph: Graph, guesses_ms: list[float], unknown: int, measured: int, why: str
) -> None:
    answers = {(_WHOLE, _ONE): ["lib"] * 3}
    known = _told(graph, answers=answers, guesses_ms=guesses_ms, unknown=unknown)
    found = single("lib", known, Looking(5.0))
    assert known.measured == measured, why
    assert found.placement is not None
    assert found.placement.predicted_ms == guesses_ms[measured], "the last guess"


def test_so_many_looks_as_are_asked_for(graph: Graph) -> None:
    known = _told(graph, answers={(_WHOLE, _ONE): ["lib"] * 3}, guesses_ms=[4.0, 4.5, 4.9], unknown=9)
    single("lib", known, Looking(5.0, 1))
    assert known.measured == 1


def test_a_guess_that_fails_is_no_look(graph: Graph) -> None:
    """So many formats as there are may fail one after the other: what comes of it is to run as a whole."""
    known = _told(graph, answers={(_WHOLE, _ONE): ["lib"] * 3}, guesses_ms=[4.0] * 9, unknown=8, failing=3)
    single("lib", known, Looking(5.0, 1))
    assert known.measured == 4


def test_what_is_measured_in_part_is_no_look(graph: Graph) -> None:
    known = _told(graph, answers={(_WHOLE, _ONE): ["lib"] * 3}, guesses_ms=[4.0] * 9, unknown=8, partial=3)
    single("lib", known, Looking(5.0, 1))
    assert known.measured == 4


def test_looks_end_with_the_time_however_many_guesses_fail(graph: Graph) -> None:
    known = _told(graph, answers={(_WHOLE, _ONE): ["lib"] * 3}, guesses_ms=[4.0] * 9, unknown=8, failing=8)
    single("lib", known, Looking(math.inf, time_is_over=lambda: known.measured >= 3))
    assert known.measured == 3


@pytest.mark.parametrize(("far", "names"), [(1.5, "bc"), (2.0, "bc"), (2.1, "c"), (math.inf, "")])
def test_who_is_predicted_to_be_far_behind(graph: Graph, far: float, names: str) -> None:
    mix = Placement((), (), _TARGET, 2.0)
    predicted_ms = {"a": None, "b": 4.0, "c": 1e6}
    placements = {
        name: Placement(
            (Group(name, (0,), plain_variant(Subgraph(graph, [graph.nodes[0].id]))),), (), _TARGET, ms
        )
        for name, ms in predicted_ms.items()
    }
    singles = [Single(name, p, alone=True) for name, p in placements.items()]
    singles.append(Single("nowhere", None, alone=False))
    assert far_of(singles, mix, far) == {placements[name].digest for name in names}


def _told(graph: Graph, **told: Any) -> _Told:
    subgraph = Subgraph(graph, [graph.nodes[0].id])
    candidates = tuple(
        Candidate(subgraph, "lib", plain_variant(subgraph), origin) for origin in ("pattern", ALL_TAKEN)
    )
    kinds = {"lib": BackendKind.GRAPH, "ref": BackendKind.REFERENCE}
    ledger: Any = SimpleNamespace(candidates=CandidateSet(graph, _TARGET, candidates, {}, kinds))
    return _Told(ledger, OpLevelSearch(), **told)
