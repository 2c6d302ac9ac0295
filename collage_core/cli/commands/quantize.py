"""`collage quantize`: make a quantised model of one of floats."""

from __future__ import annotations

import argparse
from typing import Any

from collage_run.printable import printable_line

from collage_core.cli.arguments import add_json, add_reading, samples_in
from collage_core.cli.output import show
from collage_core.cli.progress import ProgressBars
from collage_core.cli.shapes import shapes_of
from collage_core.counted import counted
from collage_core.pipeline.quantising import quantise
from collage_core.writable import require_writable

NAME = "quantize"
SUMMARY = (
    "Write a quantised model (QDQ form, static), by the tool of a library that is installed; what values "
    "range over is seen on samples."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument(
        "--calibrate",
        metavar="FILE.npz",
        required=True,
        help="samples of the inputs, by name, along a further axis in front; the last quarter is held out",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the ONNX file to write")
    parser.add_argument(
        "--max-error",
        type=float,
        metavar="1e-2",
        help="leave as many nodes as they are as hold this error on the samples that are held out "
        "(default: everything is quantised)",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="NODES",
        help="leave these nodes as they are: a name, a glob, or an operator",
    )
    parser.add_argument(
        "--with", dest="quantizer", metavar="NAME", help="whose tool (default: the first that is available)"
    )
    add_reading(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    require_writable(args.output, {"model": args.model, "samples": args.calibrate})
    samples = samples_in(args.calibrate)
    with ProgressBars() as progress:
        made = quantise(
            args.model,
            samples,
            args.output,
            max_error=args.max_error,
            excluded=args.exclude,
            quantizer=args.quantizer,
            shapes=shapes_of(args, "quantising"),
            skip_passes=args.skip_pass,
            progress=progress,
        )
    report = {
        "model": args.model,
        "file": args.output,
        "by": made.by.name,
        "version": made.by.library_version,
        "settings": dict(made.by.settings),
        "samples": made.samples,
        "weighed_samples": made.weighed,
        "held_out_samples": made.held_out,
        "held_out_error": made.error,
        "max_error": args.max_error,
        "spared": list(made.spared),
        "quantised_products": made.quantised,
        "products": made.products,
        "bytes_before": made.bytes_before,
        "bytes": made.bytes,
    }
    show(report, args.json, _text)


def _text(report: dict[str, Any]) -> str:
    file = printable_line(report["file"])
    before, after = (report[k] / 1e6 for k in ("bytes_before", "bytes"))
    many, others = (counted(report[k], "sample") for k in ("samples", "held_out_samples"))
    allowed = "" if report["max_error"] is None else f", of the {report['max_error']:g} that was allowed"
    spared = report["spared"]
    kept = f"{counted(len(spared), 'node')} stayed floats for that\n" if spared else ""
    return (
        f"quantised as {file} by {report['by']} {report['version']}, by what was seen on {many}\n"
        f"{report['quantised_products']} of {report['products']} products multiply whole numbers; "
        f"{before:.1f} MB became {after:.1f} MB\n"
        f"off by {report['held_out_error']:.1e} at most on {others} held out "
        f"(max|difference| / max|expected|){allowed}\n{kept}"
        f"next: collage optimize {file} -o MODEL.collage"
    )
