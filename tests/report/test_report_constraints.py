"""What was asked for, as a report has it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collage_core import Constraints, FixedGroup
from collage_core.formats import channels_last, plain
from collage_core.report.constraints import constraints_from, constraints_json, prices_text

_SHAPE = (1, 2, 3, 4)
_ASKED = Constraints(
    {"a/*": "tvm"},
    [("dnnl", None), ("mkl", "MatMul")],
    [("a", "b")],
    [
        FixedGroup(("c",), "tvm"),
        FixedGroup(
            ("d", "e"),
            "dnnl",
            (plain("float32", _SHAPE),),
            (channels_last("bfloat16", _SHAPE, "sim"),),
            (("tile", "4"),),
            where="p.yaml:3",
        ),
    ],
)


@pytest.mark.parametrize("asked", [Constraints(), _ASKED])
def test_written_and_read(asked: Constraints) -> None:
    assert constraints_from(json.loads(json.dumps(constraints_json(asked)))) == asked


def test_of_older_releases() -> None:
    assert constraints_from({}) == Constraints()
    assert constraints_from({"pins": {"a": "b"}}) == Constraints({"a": "b"})


@pytest.mark.parametrize(
    "data",
    [{"together": [[1]]}, {"groups": [{"nodes": ["a"]}]}, {"groups": 3}, {"pins": {"a": 1}}],
)
def test_rubbish(data: dict[str, object]) -> None:
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError)):
        constraints_from(data)


def test_prices() -> None:
    prices: dict[str, dict[str, Any]] = {
        "a": {"ms": 0.5, "is_least": False},
        "b": {"ms": 0.0, "is_least": False},
        "c": {"ms": 0.25, "is_least": True},
        "d": {"ms": None, "is_least": True},
    }
    said = "a: 0.5000 ms; b: nothing; c: at least 0.2500 ms; d: not known"
    assert prices_text(prices) == f"what was asked for costs, by what is known: {said}"
    assert prices_text({}) == ""
