"""docs/operators.md says what was decided, and leaves out no operator that a backend claims."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from collage_benchmarks.operators import DECISIONS_HEADING, Trial, claimed, decisions_text, page
from collage_benchmarks.operators.decisions import load_decisions

from collage_core.plugins import default_registry

_DOCS = Path(__file__).parents[1] / "docs"


def test_decisions_are_those_that_were_made() -> None:
    """To write them anew without trying anything: python benchmarks/operators_table.py --decisions."""
    _, heading, found = (_DOCS / "operators.md").read_text().partition(DECISIONS_HEADING)
    assert heading
    assert found.strip() == decisions_text(load_decisions(_DOCS / "operators-decisions.json"))


def test_every_operator_that_a_backend_names_is_there() -> None:
    rows = set(re.findall(r"^\| ([\w.]+) \| \d+ \|", (_DOCS / "operators.md").read_text(), re.MULTILINE))
    named = claimed(default_registry().available())
    assert {name for name, operators in named.items() if operators} >= {"dnnl", "mkl", "ncnn"}
    assert {name: operators - rows for name, operators in named.items() if operators - rows} == {}


def _trial(verdict: str, reason: str = "", backend: str = "one", operator: str = "Relu") -> Trial:
    return Trial(operator, 14, backend, verdict, reason, "some case")


@pytest.mark.parametrize(
    ("trials", "cell"),
    [
        ([_trial("right"), _trial("view")], "yes"),
        ([_trial("right"), _trial("declined", "'x' is int8")], "1/2 [1]"),
        ([_trial("declined", "not it"), _trial("declined", "no")], "no [1], [2]"),
        ([_trial("right"), _trial("wrong", "other numbers")], "wrong [1]"),
        ([_trial("view")], "view"),
        ([_trial("refused", "no tensors")], "- [1]"),
    ],
)
def test_a_cell_says_how_it_went(trials: list[Trial], cell: str) -> None:
    assert f"| Relu | 14 | {cell} | {len(trials)} |" in page(trials, ["one"], {"one": "1.0"}, "")


def test_alike_reasons_share_a_number() -> None:
    trials = [
        _trial("declined", "'x' is int8[2,3], not float32"),
        _trial("declined", "'left' is int8[4], not float32", operator="Abs"),
        _trial("right", backend="two"),
    ]
    text = page(trials, ["one", "two"], {"one": "1.0", "two": "2.1"}, "decided")
    assert "| Abs | 14 | no [1] |" in text
    assert "| Relu | 14 | no [1] | yes | 1 |" in text
    assert "1. … is int8, not float32" in text
    assert "Versions: one 1.0, two 2.1." in text
    assert text.endswith(f"{DECISIONS_HEADING}\n\ndecided\n")


def test_what_libraries_say_at_length_takes_several_lines() -> None:
    said = "onnxruntime: /a/very/long/path.cc:59 " + "the layout was not what this kernel takes " * 6
    text = page([_trial("declined", said)], ["one"], {f"library{n}": "1.0.0" for n in range(12)}, "decided")
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    assert max(map(len, lines)) <= 120
    first = next(n for n, line in enumerate(lines) if line.startswith("1. onnxruntime"))
    assert lines[first + 1].startswith("   ")
    assert " ".join(" ".join(lines[first : first + 3]).split()) == f"1. {said.strip()}"
