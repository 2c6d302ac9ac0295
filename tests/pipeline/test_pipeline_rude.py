"""Backends that leave or answer with rubbish cost themselves, and are told with what to do."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collage_core import Registry, Target, optimize
from collage_core.errors import CollageError
from collage_core.measuring.progress import Silent

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_SAID = {
    "leaves": "leaves failed to say what it offers: BackendError: it would end the process: sys.exit(0)",
    "odd": "patterns of odd failed: TypeError: 42 is no BackendPattern",
    "oddrules": "rules of oddrules failed: TypeError: 'Relu' is no PatternRule",
    "raises": "patterns of raises failed: RuntimeError: no patterns today",
    "exits": "patterns of exits failed: BackendError: it would end the process: sys.exit(0)",
    "numbers": "it failed to name its environment variables: TypeError: ",
    "unnamable": "it failed to name its environment variables: ValueError: 'A=B' cannot be 'x",
    "texts": "supported returned 'no', which is no Refusal",
}


class Notes(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.ci if n in ("leaves", "odd") else pytest.mark.slow) for n in _SAID],
)
def test_it_costs_itself_and_is_told(name: str, parse: Parse, tmp_path: Path) -> None:
    registry, notes = Registry([importlib.import_module("pipeline_rude_backends")]), Notes()
    found = optimize(
        parse("(float[3] x) => (float y) { y = Relu(x) }"),
        backends=[name],
        target=Target("cpu", 1),
        registry=registry,
        costs=tmp_path / "costs.sqlite",
        progress=notes,
        rounds=0,
    )
    assert [g.backend for g in found.placement.groups] in (["reference"], [name])
    (told,) = [note for note in notes.told if _SAID[name] in note]
    assert told.endswith(f"({name} 1.5; to do without it: --exclude {name})")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"budget_s": -1.0}, "budget_s is a number of seconds from 0 on, not -1.0"),
        ({"budget_s": float("nan")}, "budget_s is a number of seconds from 0 on, not nan"),
        ({"backends": "reference"}, "backends are several names, as in"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, object], said: str, parse: Parse) -> None:
    with pytest.raises(CollageError, match=said):
        optimize(parse("(float[3] x) => (float y) { y = Relu(x) }"), **arguments)  # type: ignore[arg-type]
