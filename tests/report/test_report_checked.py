"""What a bundle's report says of how it was made, whoever wrote it; what `collage check` prints."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from collage_core.candidates import Constraints
from collage_core.costs.ratio import Ratio
from collage_core.pipeline.verdicts import Facts, Made, Prediction, Shown, verdicts
from collage_core.report.checked import check_json, check_text, made_from
from collage_core.runtime.origin import VersionChange

if TYPE_CHECKING:
    from collage_command import Optimised


def _report(**changes: Any) -> dict[str, Any]:
    contender = {"median_ms": 12.0, "ratio": 1.2, "half_interval": 0.01, "sittings": 8}
    return {
        "model": "m.onnx",
        "chosen": "c",
        "contenders": {
            "collage": {**contender, "median_ms": 10.0, "ratio": 1.0},
            "a": contender,
            "b+reference": {**contender, "half_interval": None, "sittings": 1},
            "c": {**contender, "ratio": 1.0},
        },
        "singles": [
            {"backend": "a", "alone": True},
            {"backend": "b", "alone": False},
            {"backend": "c", "alone": True},
            {"backend": "d", "alone": True},
        ],
        "constraints": {"pins": {"conv": "a"}, "excluded": [["d", None], ["b", "Relu"]]},
        "search": {"alone_ms": {"chosen": 11.0, "least": 10.5}},
        **changes,
    }


def test_what_a_report_says() -> None:
    assert made_from(_report(), {"made_at": 5.0}) == Made(
        "m.onnx",
        "c",
        10.0,
        {"a": Shown(Ratio(1.2, 0.01, 8), 12.0), "b+reference": Shown(Ratio(1.2, math.inf, 1), 12.0)},
        ("a", "b", "c", "d"),
        (11.0, 10.5),
        Constraints({"conv": "a"}, [("d", None), ("b", "Relu")]),
        5.0,
    )


def test_what_was_compared_with_itself_is_no_damage() -> None:
    """A library that the mix turned out to be."""
    itself = {"median_ms": 10.0, "ratio": 1.0, "half_interval": 0.0, "sittings": 8}
    made = made_from(_report(contenders={"a": itself}), {})
    assert made.singles == {"a": Shown(Ratio(1.0, 0.0, 8), 10.0)}


def test_what_older_releases_and_people_have_not_said() -> None:
    assert made_from({}, {}) == Made(constraints=Constraints({}, []))
    older = {k: v for k, v in _report(search={}).items() if k not in ("constraints", "contenders")}
    made = made_from(older, {})
    assert (made.took_part, made.alone_ms, made.median_ms) == (("a", "b", "c", "d"), None, None)


def test_what_an_optimisation_has_written(optimised: Optimised) -> None:
    made = made_from(optimised.second, {})
    assert made.took_part == ("dnnl", "tvm", "reference")
    assert made.chosen == optimised.second["chosen"]
    assert made.median_ms == optimised.second["contenders"]["collage"]["median_ms"]
    assert made.alone_ms is not None
    assert made.alone_ms[1] <= made.alone_ms[0]
    assert made.constraints == Constraints({}, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"model": 5},
        {"chosen": ["a"]},
        {"contenders": 5},
        {"contenders": {"collage": {"median_ms": "fast"}}},
        {"contenders": {"a": {}}},
        {"contenders": {"a": {"median_ms": 1.0, "ratio": -1.0, "half_interval": 0.1, "sittings": 8}}},
        {"contenders": {"a": {"median_ms": 1.0, "ratio": math.nan, "half_interval": 0.1, "sittings": 8}}},
        {"contenders": {"a": {"median_ms": 1.0, "ratio": 1.0, "half_interval": 0.1, "sittings": "8"}}},
        {"singles": 5},
        {"singles": [{}]},
        {"singles": [{"backend": 5, "alone": True}]},
        {"search": 5},
        {"search": {"alone_ms": {"chosen": True}}},
        {"constraints": {"pins": 5}},
        {"constraints": {"excluded": [["a"]]}},
        {"constraints": {"excluded": [[1, 2]]}},
    ],
)
def test_reports_that_make_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError)):
        made_from(_report(**changes), {})
    with pytest.raises(ValueError, match="no time"):
        made_from(_report(), {"made_at": "yesterday"})


def test_as_json_and_as_text() -> None:
    facts = Facts(
        "m.collage",
        made_from(_report(), {}),
        None,
        0.0,
        10.0,
        ("c",),
        {"a": Shown(Ratio(1.1, math.inf, 1, (0.9, 1.3)), 11.0)},
        {"b": "it is not installed here"},
        (VersionChange("a", "library", "1", "2"),),
        ("Abacus", "Abacus 2"),
        Prediction(10.0, 5.0, {"a": 3}, 2),
    )
    report = check_json(facts, verdicts(facts))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["status"] == 4
    single = {"ratio": 1.1, "half_interval": None, "sittings": 1, "ratio_of_rounds": [0.9, 1.3]}
    assert report["singles"] == {"a": {"median_ms": 11.0, **single}}
    contender = {**single, "median_ms": 11.0}
    assert made_from(_report(contenders={"a": contender}), {}).singles["a"] == facts.singles["a"]
    assert report["versions"] == [{"backend": "a", "what": "library", "then": "1", "now": "2"}]
    assert report["processor"] == {"then": "Abacus", "now": "Abacus 2"}
    assert report["prediction"] == {"placement_ms": 10.0, "least_ms": 5.0, "nodes": {"a": 3}, "newer": 2}
    assert check_text(report).splitlines() == [v["text"] for v in report["verdicts"]]


def test_an_error_that_was_allowed_is_allowed_again() -> None:
    limit = {"most": 0.01, "held_out_error": None, "made_up_inputs": True}
    assert made_from(_report(error_limit=limit), {}).max_error == 0.01
    theirs = made_from(_report(error_limit={**limit, "made_up_inputs": False}), {})
    assert theirs.max_error is None, "inputs that nobody has here"
    assert theirs.is_limited
    measured = made_from(_report(error_limit={**limit, "metric": "top1"}), {})
    assert (measured.max_error, measured.is_limited) == (None, True)
    assert not made_from(_report(), {}).is_limited
    assert made_from(_report(error_limit=None), {}).max_error is None
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError)):
        made_from(_report(error_limit=0.01), {})
