"""`collage explain`: why a bundle is placed as it is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage_run.files import written

from collage_core.cli.arguments import add_json
from collage_core.cli.output import show
from collage_core.cli.shapes import add_profile, shapes_of
from collage_core.errors import BundleError, CollageError, PlacementError
from collage_core.report.beside import beside_json
from collage_core.report.dataflow import dataflow_json
from collage_core.report.dot import BEGINS as DOT_BEGINS
from collage_core.report.dot import placement_dot
from collage_core.report.front import front_svg
from collage_core.report.page import BEGINS as PAGE_BEGINS
from collage_core.report.page import page
from collage_core.report.profiles import of_profiles, profiles_text
from collage_core.report.summary import placement_json
from collage_core.report.text import explain_text
from collage_core.runtime.bundle import Bundle, chosen, read, read_profiles
from collage_core.runtime.plan import schedule
from collage_core.runtime.profiles import shapes_text
from collage_core.steering import placement_yaml
from collage_core.writable import require_replaceable

NAME = "explain"
SUMMARY = "Show a bundle's groups, conversions and costs, and why backends declined or failed."

_FILES = {
    "html": (PAGE_BEGINS.encode(), "page of ours"),
    "dot": (DOT_BEGINS.encode(), "drawing of ours"),
    "front": (b"<svg", "picture"),
    "placement": (b"version:", "placement"),
}
"""What can be written: how such a file begins, and what it is called."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="a file that `collage optimize -o` wrote")
    add_profile(parser, "all; what is written into files, or beside another bundle, is of one")
    parser.add_argument(
        "--beside", metavar="OTHER.collage", help="another bundle of the model: tell what moved since"
    )
    parser.add_argument(
        "--html",
        metavar="FILE.html",
        help="write there the same as one page, with the graph drawn (package collage-page)",
    )
    parser.add_argument("--dot", metavar="FILE.dot", help="draw the graph there in Graphviz's language")
    parser.add_argument(
        "--front",
        metavar="FILE.svg",
        help="draw time against error there, of what was tried to hold --max-error",
    )
    parser.add_argument(
        "--placement",
        metavar="FILE.yaml",
        help="write there who runs what, to be changed and given to `collage place`",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    given = {name: file for name in _FILES if (file := getattr(args, name)) is not None}
    others = {"bundle": args.bundle, **({"other bundle": args.beside} if args.beside else {})}
    for name, file in given.items():
        begins, what = _FILES[name]
        require_replaceable(file, others, begins, what)
        others[f"file of --{name}"] = file
    if given or args.beside or args.shape:
        bundle = read(args.bundle, shapes=shapes_of(args, "this command"))
        report = _report(bundle, args.bundle)
    else:
        profiles = read_profiles(args.bundle)
        bundle = profiles[0]
        shapes = [shapes_text(one.shapes) for one in profiles] if len(profiles) > 1 else [""]
        report = of_profiles([_report(one, args.bundle) for one in profiles], shapes)
    other = None if args.beside is None else _report(_other(args.beside, bundle), args.beside)
    try:
        if other is not None:
            report["beside"] = beside_json(report, other, args.beside)
        text = "" if args.json else profiles_text(report, explain_text)
        contents = {name: _content(name, bundle, report, other, args.bundle) for name in given}
    except CollageError:
        raise
    except Exception as error:  # anyone may have written the report
        raise BundleError(f"{args.bundle}: its report is damaged ({error!r})") from None
    if "placement" in contents:
        _require_unedited(given["placement"], contents["placement"])
    for name, content in contents.items():
        with written(given[name]) as file:
            file.write_text(content, encoding="utf-8")
    show(report, args.json, lambda _: text)


def _other(file: str, bundle: Bundle) -> Bundle:
    """What to compare a bundle with: of several profiles in the file that of the same shapes."""
    profiles = read_profiles(file)
    return profiles[0] if len(profiles) == 1 else chosen(profiles, file, bundle.shapes)


def _require_unedited(file: str, content: str) -> None:
    """A placement is written to be edited, and what somebody has written into it is not to be lost."""
    path = Path(file)
    if path.exists() and path.read_bytes() not in (b"", content.encode()):
        raise CollageError(
            f"cannot write {file}: it says something else, maybe what you have changed; remove it first"
        )


def _report(bundle: Bundle, file: str) -> dict[str, Any]:
    """What the optimisation told, where the placement is still the one that it told of."""
    try:
        schedule(bundle.graph, bundle.placement)
        placed = placement_json(bundle.graph, bundle.placement)
    except PlacementError as error:
        raise BundleError(f"{file}: its placement cannot run: {error}") from None
    except Exception as error:  # anyone may have edited it
        raise BundleError(f"{file}: its placement does not fit its model ({error!r})") from None
    report = dict(bundle.report)
    try:
        if not report:
            report = placed
        elif not all(_same(report[parts], placed[parts]) for parts in ("groups", "conversions")):
            report = {**placed, "is_edited": True}
        # Of older reports not all is told.
        groups = zip(placed["groups"], report["groups"], strict=True)
        report = {**report, "groups": [{**known, **told} for known, told in groups]}
        report["dataflow"] = dataflow_json(bundle.graph, bundle.placement, report)
    except Exception as error:  # anyone may have written the report
        raise BundleError(f"{file}: its report is damaged ({error!r})") from None
    return report


def _same(told: Sequence[Mapping[str, Any]], placed: Sequence[Mapping[str, Any]]) -> bool:
    """Whether groups or conversions are those of the placement: it may have been edited since."""
    keys = ("backend", "nodes", "value", "from", "to")
    return [[t.get(k) for k in keys] for t in told] == [[p.get(k) for k in keys] for p in placed]


def _content(
    name: str, bundle: Bundle, report: Mapping[str, Any], other: Mapping[str, Any] | None, file: str
) -> str:
    """What is written into the file of that option."""
    if name == "html":
        return page(report, other)
    if name == "dot":
        return placement_dot(report)
    if name == "placement":
        return placement_yaml(bundle.graph, bundle.placement)
    limit = report.get("error_limit") or {}
    if not limit.get("tried"):
        raise BundleError(f"{file}: no error was limited by --max-error, and no front is known")
    return front_svg(limit, str(report.get("model") or file))
