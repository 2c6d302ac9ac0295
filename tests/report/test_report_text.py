"""The texts made from reports, and their tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from collage_core.report.tables import Table, headline
from collage_core.report.text import bench_text, explain_text, optimization_text

if TYPE_CHECKING:
    from collage_command import Optimised


def _told(ratio: float, **others: object) -> dict[str, Any]:
    """Of a contender, in JSON."""
    told: dict[str, Any] = {
        "median_ms": ratio,
        "spread_ms": 0.01,
        "ratio": ratio,
        "half_interval": 0.03,
        "sittings": 8,
    }
    told |= {"ratio_as_it_came": ratio, "half_interval_as_it_came": 0.05, "retaken": 1, "reason": None}
    return told | {"is_slower": ratio > 1.05, "is_faster": False, "enough_sittings": True, **others}


@pytest.mark.parametrize(
    ("others", "beaten_by", "says"),
    [
        ([_told(1.1), _told(1.2)], [], "faster than everything else that was measured, beyond what is"),
        ([_told(1.1), _told(0.99)], [], "as fast, as far as can be told: b"),
        ([_told(1.03, enough_sittings=False), _told(1.2)], [], "too few sittings to tell: a"),
        (
            [_told(3.4, enough_sittings=False, sittings=1, is_slower=False)],
            [],
            "left out when it was behind: a",
        ),
        ([_told(1.02, enough_sittings=False, is_slower=False)], [], "too few sittings to tell: a"),
        ([_told(0.995, is_faster=True)], [], "faster, by less than a simpler placement is worth: a"),
        (
            [_told(0.9, is_faster=True, ratio_as_it_came=1.3)],
            [],
            "faster while the processors were as usual, slower as it came: a",
        ),
        ([_told(0.99), _told(0.99)], ["b"], "as fast, as far as can be told: a"),
        ([_told(1.1), _told(0.99)], ["b"], "b: faster when this was confirmed, not known to be slower"),
    ],
)
def test_what_is_proven_is_said(
    report: dict[str, Any], others: list[dict[str, Any]], beaten_by: list[str], says: str
) -> None:
    contenders = {"collage": _told(1.0), **dict(zip("ab", others, strict=False))}
    text = optimization_text(report | {"chosen": "mix", "contenders": contenders, "beaten_by": beaten_by})
    assert says in text
    assert ("faster than everything" in text) == ("everything" in says)


@pytest.fixture
def report(optimised: Optimised) -> dict[str, Any]:
    return dict(optimised.second)


def test_the_text_tells_what_the_json_tells(report: dict[str, Any]) -> None:
    text, explained = optimization_text(report), explain_text(report)
    for name, c in report["contenders"].items():
        for lines in (text.splitlines(), explained.splitlines()):
            assert any(line.startswith(name) and f"{c['median_ms']:.4f}" in line for line in lines)
    assert f"{report['contenders']['collage']['median_ms']:.4f} ms, " in text
    assert ("optimal for the measured costs" in text) == report["search"]["optimal"]
    assert ("is what you get" in text) == (report["chosen"] != "mix")
    for name, share in report["shares"].items():
        assert (f"{name} {share['share']:.1%} (" in text) == (name != "view")
    assert f"predicted {report['predicted_ms']:.3f} ms" in explained
    assert explained.count("of that)") == len(report["search"]["in_place"]) >= 1
    for turn in report["search"]["in_place"]:
        assert f"{turn['predicted_ms']:.4f} predicted, {turn['took_ms']:.4f} taken" in explained
    for name, share in report["shares"].items():
        assert re.search(rf"^{name} +{share['groups']} +{share['nodes']} ", explained, re.MULTILINE)
    assert "on the reference" not in explained


def _lines(report: dict[str, Any]) -> list[str]:
    """What follows the table."""
    return optimization_text(report).rpartition("\n\n")[2].splitlines()


def test_ten_lines_say_what_a_person_wants_to_know(report: dict[str, Any]) -> None:
    """All that there can be something to say of, in the order in which it is asked for."""
    shares = {
        "dnnl": {"groups": 2, "nodes": 5, "conversions": 1, "ms": 3.0, "share": 0.75},
        "tvm": {"groups": 1, "nodes": 1, "conversions": 0, "ms": 1.0, "share": 0.25},
        "mkl": {"groups": 0, "nodes": 0, "conversions": 2, "ms": 0.0, "share": 0.0},
        "view": {"groups": 1, "nodes": 1, "conversions": 0, "ms": 0.0, "share": 0.0},
    }
    report |= {
        "chosen": "mix",
        "shares": shares,
        "contenders": {
            "collage": _told(1.0, median_ms=4.5),
            "dnnl": _told(1.25),
            "tvm": _told(1.125, half_interval=0.0625, sittings=9),
            "mkl": _told(0.99),
            "mix of another search": _told(0.5, is_faster=True),
        },
        "singles": [
            {"backend": n, "alone": True, "predicted_ms": 1.0, "reason": None} for n in ("dnnl", "tvm")
        ],
        "beaten_by": ["mkl"],
        "search": {
            **report["search"],
            "optimal": False,
            "total_ms": 1.05,
            "lower_bound_ms": 1.0,
            "method": "dp",
        },
        "second_level": {"stopped_by": "budget"},
        "rejected": [f"tvm: {'it crashed ' * 20}", "mkl: wrong", "dnnl: wrong"],
        "errors": ["the pass p was left out: wrong", "the pass q was left out: wrong"],
        "max_rel_error": 3e-6,
        "original": {"max_rel_error": 0.0, "unchecked": None},
        "second_opinion": {"peer": "rival", "error": 1e-7},
        "output": "my models/m.collage",
    }
    assert _lines(report) == [
        "the mix: dnnl 75.0% (5 nodes), tvm 25.0% (1 node), mkl 0.0% (2 conversions) of the predicted time",
        "4.5000 ms, 1.125 times as fast as tvm, the fastest single library (+-0.062 at 95 %, 9 sittings)",
        "mkl: faster when this was confirmed, not known to be slower after all; "
        "faster, by less than a simpler placement is worth: mix of another search",
        "not proven optimal, at most 5.0% above the best (method dp); second level: stopped, budget",
        f"not chosen, {('tvm: ' + 'it crashed ' * 20)[:99]}…; nor 2 more",
        "error: the pass p was left out: wrong; error: the pass q was left out: wrong",
        "answers checked: against the reference, within 3.0e-06; the reference against the model as it was "
        "given, exactly; the reference against rival, within 1.0e-07",
        "saved as 'my models/m.collage'; to run it: collage run 'my models/m.collage' --input NAME=FILE.npy",
        "why it is so: collage explain 'my models/m.collage'; "
        "whether it still is, later: collage check 'my models/m.collage'",
    ]
    explained = explain_text(report)
    for whole in (*report["rejected"], *report["errors"]):
        assert whole in explained
    assert "4.5000 ms, 1.125 times as fast as tvm" in explained
    assert "saved" not in explained


def test_the_text_where_little_is_known(report: dict[str, Any]) -> None:
    """Nothing was run end to end, and no cost is known."""
    shares = {"dnnl": {"groups": 1, "nodes": 5, "conversions": 0, "ms": 0.0, "share": 0.0}}
    unknown = report | {"contenders": {}, "chosen": "mix", "shares": shares, "max_rel_error": None}
    unknown |= {"original": None, "output": None, "predicted_ms": 2.0, "rejected": [], "errors": []}
    unknown["search"] = report["search"] | {"optimal": True, "method": "dp"}
    assert _lines(unknown) == [
        "the mix: dnnl (5 nodes)",
        "predicted 2.0000 ms; not run end to end",
        "optimal for the measured costs (method dp)",
        "answers checked: not run end to end",
        "not saved: -o FILE.collage keeps it, and what was measured is not measured again",
    ]
    assert _lines(unknown | {"predicted_ms": None})[1] == "not run end to end"
    alone = report | {"contenders": {"collage": _told(1.0), "dnnl": _told(1.0)}, "chosen": "dnnl"}
    assert _lines(alone)[1] == "1.0000 ms; no other single library was run beside it"
    once = {"collage": _told(1.0), "tvm": _told(1.5, half_interval=None, sittings=1)}
    assert _lines(report | {"contenders": once, "chosen": "dnnl"})[1] == (
        "1.0000 ms, 1.500 times as fast as tvm, the next single library "
        "(how sure that is cannot be told, 1 sitting)"
    )
    twice = {"collage": _told(1.0), "tvm": _told(1.5, half_interval=3.3, sittings=2)}
    seldom = report | {"contenders": twice, "chosen": "dnnl"}
    assert "(how sure that is cannot be told, 2 sittings)" in _lines(seldom)[1]


def test_where_the_seconds_went_is_explained(report: dict[str, Any]) -> None:
    counts = {"offered": 1461, "known": 40, "bounded_out": 900, "raced_out": 60, "measured": 461}
    seconds = {"measuring kernels": 30.0, "choosing": 10.0}
    search = {k: v for k, v in report["search"].items() if k not in ("counts", "seconds")}
    text = explain_text(report | {"search": search | {"counts": counts, "seconds": seconds}})
    assert "candidates: 1461 offered, 40 known, 900 bounded out, 60 raced out, 461 measured" in text
    expected = [
        "phase              seconds  share",
        "measuring kernels     30.0  75.0%",
        "choosing              10.0  25.0%",
        "all                   40.0",
    ]
    assert "\n".join(expected) in text
    before = explain_text(report | {"search": search})
    assert "candidates:" not in before
    assert "phase  " not in before
    assert "-" in explain_text(report | {"search": search | {"seconds": {"searching": 0.0}}})


def test_the_text_of_rarer_outcomes(report: dict[str, Any]) -> None:
    report |= {
        "chosen": "dnnl",
        "contenders": {"collage": _told(1.0), "tvm": _told(0.98), "mkl": _told(1.1)},
        "fallback": [
            {"node": "n1", "op": "CumSum", "cost_ms": 0.5, "declined": {"a": "too odd"}},
            {"node": "n2", "op": "CumSum", "cost_ms": 0.5, "declined": {}},
        ],
        "singles": [
            {"backend": "x", "alone": True, "predicted_ms": 123.0, "reason": None},
            {
                "backend": "y",
                "alone": False,
                "predicted_ms": None,
                "reason": "no backend can run node 'q' (Q)",
            },
        ],
        "search": report["search"] | {"optimal": False, "total_ms": 1.05, "lower_bound_ms": 1.0},
    }
    text = explain_text(report)
    assert "\ndnnl is what you get\n" in text
    assert "\nas fast, as far as can be told: tvm\n" in text
    assert "n1 (CumSum), 0.5000 ms: a: too odd" in text
    assert "n2 (CumSum), 0.5000 ms: no backend has a pattern for it" in text
    assert "not run: predicted 123 ms" in text
    assert "not run: no backend can run node 'q' (Q)" in text
    assert "not proven optimal, at most 5.0% above the best" in text
    unknown = report | {"search": report["search"] | {"optimal": False, "lower_bound_ms": None}}
    assert "not proven optimal)" in explain_text(unknown)
    assert "not proven optimal (method" in optimization_text(unknown)


def test_names_in_a_report_keep_to_their_lines(report: dict[str, Any]) -> None:
    name = "m\n\x1b[2J[red]"
    report |= {"model": name, "output": name, "rejected": [name], "chosen": name}
    text = optimization_text(report)
    assert "\x1b" not in text
    assert text.count("m\\n\\x1b[2J[red]") >= 4


def test_tables_are_aligned() -> None:
    text = str(Table(("name", "ms"), [("a", "1.5"), ("longer", "10.25")], right=[1]))
    assert text.splitlines() == ["name       ms", "a         1.5", "longer  10.25"]


def test_a_row_of_a_table_is_a_line_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = [("[red]a[/red] :smile:", "1", "x" * 1000 + " " + "y" * 1000), ("b\n\x1b[31mc\t", "", "")]
    header, first, second = str(Table(("name", "ms", ""), rows, right=[1])).splitlines()
    assert header == "name                  ms"
    assert first == f"[red]a[/red] :smile:   1  {'x' * 1000} {'y' * 1000}"
    assert second == r"b\n\x1b[31mc\t"
    assert str(Table(("name", "ms"), [])) == "name  ms"


def test_columns_are_as_wide_as_they_look() -> None:
    assert str(Table(("name", "ms"), [("日本", "1"), ("a", "2")])).splitlines()[1:] == ["日本  1", "a     2"]


@pytest.mark.parametrize(("count", "ending"), [(1, ""), (2, "s")])
def test_one_request_and_one_thread_are_one(count: int, ending: str) -> None:
    report = {"model": "m.onnx", "device": "cpu", "threads": count}
    assert headline(report) == f"m.onnx on cpu, {count} thread{ending}"
    served = headline({**report, "serving": {"concurrency": count, "sessions": 1}})
    assert served.endswith(f", {count} request{ending} at a time")
    compared = {"contenders": {}, "concurrency": count, "ratio_to_best_peer": None, "max_rel_error": {}}
    assert f"\n{count} request{ending} at a time; answered" in bench_text(compared)
