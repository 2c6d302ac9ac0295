"""What every command says alike: usage, warnings, interrupts, and JSON without NaN."""

from __future__ import annotations

import argparse
import json
import math
import warnings

import numpy as np
import pytest
from collage_run.command import _summary

from collage_core.cli import commands
from collage_core.cli.main import main
from collage_core.cli.output import show


@pytest.mark.parametrize(
    ("command", "said"), [("optimize", "interrupted; what was measured is kept"), ("run", "interrupted")]
)
def test_nothing_is_said_to_be_kept_where_nothing_is_measured(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    (module,) = (c for c in commands.ALL if command == c.NAME)
    monkeypatch.setattr(module, "run", interrupted)
    assert main([command, "m.onnx"]) == 130
    assert capsys.readouterr().err == f"collage: {said}\n"


def test_warnings_are_one_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(args: argparse.Namespace) -> int:
        warnings.simplefilter("default")
        warnings.warn("this folder is not used:\nit is a link", stacklevel=1)
        return 0

    (module,) = (c for c in commands.ALL if c.NAME == "backends")
    monkeypatch.setattr(module, "run", warned)
    assert main(["backends"]) == 0
    assert capsys.readouterr().err == "collage: note: this folder is not used: it is a link\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["improve"],
        ["optimize"],
        ["optimize", "m.onnx", "--threads", "many"],
        ["bench", "m.onnx", "--rounds", "few"],
        ["costs"],
        ["costs", "prune", "--older-than", "long"],
        ["run", "m.collage", "--fast"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: collage")


@pytest.mark.filterwarnings("error")
def test_the_summary_of_an_output_with_both_infinities_warns_of_nothing() -> None:
    said = _summary(np.array([np.inf, -np.inf, 1], np.float32), None)
    assert (said["min"], said["max"]) == (-np.inf, np.inf)
    assert np.isnan(said["mean"])


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    show({"a": [math.nan, 1.5, -math.inf], "b": (math.inf, "NaN")}, True, str)
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5, None], "b": [None, "NaN"]}
