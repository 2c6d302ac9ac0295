"""`collage bench`: Collage beside whole runtimes, in one run of alternating rounds."""

from __future__ import annotations

import argparse
import zipfile
from dataclasses import replace

from collage_run.files import regular

from collage_core.cli.arguments import (
    add_json,
    add_objective,
    add_placing,
    add_rounds,
    costs_of,
    count_of,
    names_of,
    rounds_of,
)
from collage_core.cli.output import show
from collage_core.cli.placing import optimize_from
from collage_core.cli.progress import ProgressBars
from collage_core.cli.shapes import shapes_of
from collage_core.costs.database import CostDatabase
from collage_core.errors import CollageError
from collage_core.ir import Graph
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Progress
from collage_core.pipeline.benchmark import benchmark
from collage_core.pipeline.proof import COLLAGE
from collage_core.placement import Placement
from collage_core.plugins import default_registry
from collage_core.report.contenders import bench_json
from collage_core.report.text import bench_text
from collage_core.runtime.bundle import read
from collage_core.runtime.loading import differences_here
from collage_core.serving import MOST_AT_A_TIME, Serving
from collage_core.target import Target

NAME = "bench"
SUMMARY = (
    "Compare a placed model with whole runtimes: each in its own process, in alternating rounds, "
    "stopped while it is not its turn."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="an ONNX file, which is optimised first, or a bundle")
    parser.add_argument(
        "--against", metavar="A,B", help="peers to compare with (default: all that are available)"
    )
    parser.add_argument(
        "--original",
        metavar="MODEL.onnx",
        help="the model that a bundle was made from, for the peers to load (default: the bundle's own graph, "
        "which Collage has normalised)",
    )
    add_objective(
        parser,
        "ask N requests at a time, and tell how many are answered: by sessions beside each other, each with "
        "its share of the processors (default: as the bundle was made for)",
    )
    add_rounds(parser, "the comparison with peers")
    add_placing(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    rounds, costs = rounds_of(args), costs_of(args)
    concurrency = count_of("--concurrency", args.concurrency, MOST_AT_A_TIME)
    registry = default_registry()
    peers = registry.available_peers(names_of(args.against))
    with ProgressBars() as progress:
        graph, placement, model_file, serving = _placed(args, progress, rounds)
        target = placement.target
        if concurrency is not None and (serving is None or serving.concurrency != concurrency):
            serving = Serving.of(concurrency, target.threads, Target.default().threads)
        if serving is not None:  # peers have as many threads as all sessions together
            target = replace(target, threads=serving.sessions * target.threads)
        with CostDatabase(costs) as database:
            machine = Machine.of(database, target=target, progress=progress)
            result = benchmark(machine, graph, {COLLAGE: placement}, peers, model_file, rounds, serving)
    report = bench_json(result.comparison, result.peers, result.differences)
    told = {
        "model": args.model,
        "threads": placement.target.threads,
        "concurrency": None if serving is None else serving.concurrency,
    }
    report = {**told, **report}
    show(report, args.json, bench_text)
    faults = {**report["failed"], **report["disagrees"]}
    if faults:
        raise CollageError("; ".join(f"{name}: {why}" for name, why in faults.items()))


def _placed(
    args: argparse.Namespace, progress: Progress, rounds: int | None
) -> tuple[Graph, Placement, str | None, Serving | None]:
    """The graph, its placement, the file that peers load (the model as it came, unless its shapes were given
    here or nobody says where a bundle's is), and how it is to be served.
    """
    for file in filter(None, [args.model, args.original]):
        try:
            open(file, "rb", opener=regular).close()
        except OSError as error:
            raise CollageError(f"{file}: {error.strerror or error}") from None
    if zipfile.is_zipfile(args.model):
        bundle = read(args.model, check_weights=True, shapes=shapes_of(args, "this command"))
        for difference in differences_here(bundle, args.model, default_registry()):
            progress.note(f"note: {difference}")
        return bundle.graph, bundle.placement, args.original, bundle.serving
    if args.original:
        raise CollageError(f"--original goes with a bundle; {args.model} is none")
    found = optimize_from(args, progress, rounds)
    return found.graph, found.placement, None if args.shape else args.model, found.serving
