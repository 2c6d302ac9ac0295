"""How commands are told which networks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pytest
from collage_benchmarks.networks import NETWORKS, add_networks


@pytest.mark.parametrize(
    ("name", "nargs", "given", "meant"),
    [
        ("networks", "+", ["mnist", "dcgan"], ["mnist", "dcgan"]),
        ("networks", "*", ["mnist"], ["mnist"]),
        ("networks", "*", [], ["tiny_conv"]),
        ("--networks", "+", ["--networks", "mnist"], ["mnist"]),
        ("--networks", "+", [], ["tiny_conv"]),
    ],
)
def test_what_is_given_is_meant_or_else_the_default(
    name: str, nargs: str, given: Sequence[str], meant: Sequence[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_networks(parser, name, nargs=nargs, default=["tiny_conv"])
    assert parser.parse_args(given).networks == meant


@pytest.mark.parametrize("nargs", ["+", "*"])
def test_what_there_is_is_told(nargs: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_networks(parser, nargs=nargs)
    assert {*NETWORKS} <= {*parser.format_help().replace(",", " ").split()}
    with pytest.raises(SystemExit):
        parser.parse_args(["mnits"])
    assert "unknown network 'mnits'; known: " in capsys.readouterr().err
