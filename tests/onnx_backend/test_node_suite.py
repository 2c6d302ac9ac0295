"""ONNX's own node tests, by ONNX's own runner, on each backend with the reference and on all together.

`exclusions.json` names every case that is not right, with the reason. The table tests/golden/node_suite.txt
says who ran which case; after a change that was meant,
`python -m pytest tests/onnx_backend -m slow --update-golden` writes it anew.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from collage_benchmarks.node_suite import ALONE, PARTLY, REFUSED, Outcome, cases, is_float, run_cases

_BACKENDS = ("dnnl", "mkl", "ncnn", "onnxruntime", "openvino", "tvm")
_ALL = "all"
_COLUMNS = (*_BACKENDS, _ALL)
_EXCLUSIONS = json.loads((Path(__file__).parent / "exclusions.json").read_text())
_TABLE = Path(__file__).parents[1] / "golden" / "node_suite.txt"
_SHARE = 61
"""Every so-manieth case runs in the ordinary tests, on each backend another share of them."""
_FLOAT_SHARE = 0.85


@pytest.mark.slow
@pytest.mark.parametrize("column", _COLUMNS)
def test_every_case(column: str, request: pytest.FixtureRequest) -> None:
    outcomes = run_cases(backends=None if column == _ALL else [column])
    ran = {name: outcome.ran for name, outcome in outcomes.items()}
    if request.config.getoption("--update-golden"):
        _write_column(column, ran)
    _hold_to_the_exclusions(column, outcomes)
    assert _differences(column, ran) == {}, "to accept: pytest -m slow --update-golden"


@pytest.mark.parametrize("column", _COLUMNS)
def test_a_share_of_the_cases(column: str) -> None:
    names = list(cases())[_COLUMNS.index(column) :: _SHARE]
    outcomes = run_cases(names, None if column == _ALL else [column])
    _hold_to_the_exclusions(column, outcomes)
    assert _differences(column, {name: outcome.ran for name, outcome in outcomes.items()}) == {}


def test_float_cases_run_on_something_else_than_the_reference() -> None:
    """Those that nothing is computed of, and those that are declined, count as if the reference ran them."""
    table = _read_table()
    assert list(table) == list(cases()), "other cases than in the table: ONNX is another version"
    floats = [name for name, case in cases().items() if is_float(case)]
    ran = [name for name in floats if table[name][-1] in (ALONE, PARTLY)]
    assert len(floats) > 1500
    assert len(ran) >= _FLOAT_SHARE * len(floats)


def test_every_backend_runs_something() -> None:
    """But for the one that wants constant weights, which no case of a convolution has."""
    table = _read_table()
    idle = [column for i, column in enumerate(_COLUMNS) if all(m[i] != ALONE for m in table.values())]
    assert idle == ["ncnn"]


def test_exclusions_name_cases() -> None:
    named = {name for by_reason in _EXCLUSIONS["refused"].values() for name in by_reason}
    named.update(_EXCLUSIONS["random"])
    for what in ("wrong", "elsewhere"):
        assert set(_EXCLUSIONS[what]) <= set(_COLUMNS)
        named.update(n for by_reason in _EXCLUSIONS[what].values() for ns in by_reason.values() for n in ns)
    assert named <= set(cases())


def _hold_to_the_exclusions(column: str, outcomes: Mapping[str, Outcome]) -> None:
    """What is excluded is excluded for its reason and still needs to be; everything else is right."""
    refused = {name: why for why, names in _EXCLUSIONS["refused"].items() for name in names}
    wrong = set(_EXCLUSIONS["random"]) | _named("wrong", column)
    unexpected = {
        name: (o.status, o.reason)
        for name, o in outcomes.items()
        if o.status != "right"
        and not (o.status in ("refused", "failed") and name in refused and refused[name] in o.reason)
        and not (o.status in ("wrong", "failed") and name in wrong)
    }
    assert unexpected == {}, "not right, and not excluded"
    idle = {n for n, o in outcomes.items() if o.status == "right" and (n in refused or n in wrong)}
    assert idle == set(), "excluded, and right"
    moved = {name: o.notes for name, o in outcomes.items() if o.notes}
    expected = _named("elsewhere", column) & set(outcomes)
    assert set(moved) == expected, f"failed and ran elsewhere: {moved}"


def _named(what: str, column: str) -> set[str]:
    return {name for names in _EXCLUSIONS[what].get(column, {}).values() for name in names}


def _differences(column: str, ran: Mapping[str, str]) -> dict[str, str]:
    """Where a column of the table is not what was found: "name: found, not expected"."""
    table, i = _read_table(), _COLUMNS.index(column)
    expected = {name: marks[i] for name, marks in table.items()}
    return {n: f"{found}, not {expected.get(n)}" for n, found in ran.items() if found != expected.get(n)}


def _read_table() -> dict[str, str]:
    """Marks by case, one for each column."""
    rows = [line.split() for line in _TABLE.read_text().splitlines() if not line.startswith("#")]
    return {name: marks for marks, name in rows}


def _write_column(column: str, ran: Mapping[str, str]) -> None:
    """Replace one column; others may be written by other processes meanwhile."""
    _TABLE.touch()
    with _TABLE.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table, i = _read_table(), _COLUMNS.index(column)
        lines = [
            f"# Who ran which of ONNX's node cases: {', '.join(_COLUMNS)}.",
            "# x: without the reference, +: with it, .: it alone, v: views alone, -: it did not run.",
        ]
        for name, mark in sorted(ran.items()):
            marks = list(table.get(name, REFUSED * len(_COLUMNS)))
            marks[i] = mark
            lines.append(f"{''.join(marks)} {name}")
        _TABLE.write_text("\n".join(lines) + "\n")
