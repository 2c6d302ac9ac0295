"""`collage check`: whether a bundle is still right, and still the fastest that is known."""

from __future__ import annotations

import argparse

from collage_core.cli.arguments import add_costs, add_json, costs_of, names_of, seconds_of
from collage_core.cli.output import show
from collage_core.cli.progress import ProgressBars
from collage_core.cli.shapes import add_profile, shapes_of
from collage_core.costs.database import CostDatabase
from collage_core.errors import BundleError, CollageError
from collage_core.measuring.machine import Machine
from collage_core.pipeline.checking import check_bundle
from collage_core.pipeline.verdicts import Made, status_of, verdicts
from collage_core.plugins import default_registry
from collage_core.report.checked import check_json, check_text, made_from
from collage_core.report.profiles import of_profiles, profiles_text
from collage_core.runtime.bundle import Bundle, read, read_profiles
from collage_core.runtime.loading import differences_here
from collage_core.runtime.profiles import shapes_text

NAME = "check"
SUMMARY = (
    "Prove a bundle again, here and with what is installed now: whether it answers as it should, and whether "
    "it is still faster than the best single library. Exit code 0: it is; 3: it is slower; 4: optimise again."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="a file that `collage optimize -o` wrote")
    add_profile(parser, "all, each with its part of the budget")
    parser.add_argument(
        "--backends",
        metavar="A,B",
        help="libraries to compare it with (default: those that took part when it was made)",
    )
    parser.add_argument(
        "--budget", metavar="TIME", default="30s", help="how long it may take, as in 30s or 2m (default: 30s)"
    )
    add_costs(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    budget_s = seconds_of("--budget", args.budget)
    assert budget_s is not None
    costs = costs_of(args)
    names, registry = names_of(args.backends), default_registry()
    if args.shape:
        bundles = [read(args.bundle, check_weights=True, shapes=shapes_of(args, "this command"))]
    else:
        bundles = [*read_profiles(args.bundle, check_weights=True)]
    made = [_made(bundle, args.bundle) for bundle in bundles]
    for bundle in bundles:
        differences_here(bundle, args.bundle, registry)  # or it cannot run here
    with ProgressBars() as progress, CostDatabase(costs, may_be_read_only=True) as database:
        if not database.is_kept:
            progress.note(f"{database.path} cannot be written: what is measured now is not kept")
        machine = Machine.of(database, target=bundles[0].placement.target, progress=progress)
        facts = [
            check_bundle(machine, args.bundle, bundle, told, budget_s / len(bundles), names)
            for bundle, told in zip(bundles, made, strict=True)
        ]
    found = [verdicts(one) for one in facts]
    shapes = [shapes_text(bundle.shapes) for bundle in bundles] if len(bundles) > 1 else [""]
    report = of_profiles([check_json(*pair) for pair in zip(facts, found, strict=True)], shapes)
    show(report, args.json, lambda told: profiles_text(told, check_text))
    for wrong in (one.wrong for one in facts if one.wrong is not None):
        raise CollageError(f"{args.bundle}: its answers are not the reference's: {wrong}")
    return min((int(status) for status in map(status_of, found) if status), default=0)


def _made(bundle: Bundle, file: str) -> Made:
    try:
        return made_from(bundle.report, bundle.origin)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BundleError(f"{file}: its report is damaged ({error!r})") from None
