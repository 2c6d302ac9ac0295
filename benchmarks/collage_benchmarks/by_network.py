"""Scripts that place networks, one after the other, and compare each with whole runtimes."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from collage_benchmarks.networks import add_networks
from collage_core import Group, Optimization
from collage_core.errors import CollageError
from collage_core.pipeline.effort import EFFORTS
from collage_core.target import processor

__all__ = ["arguments", "placed", "run", "timed"]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What they all are asked."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_networks(parser)
    parser.add_argument("--effort", choices=sorted(EFFORTS), default="normal", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="for every library (default: %(default)s)")
    parser.add_argument("--costs", metavar="FILE", help="cost database (default: in the user's cache folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to a file")
    return parser


def run(
    name: str,
    args: argparse.Namespace,
    measured: Callable[[str, argparse.Namespace], dict[str, Any]],
    text: Callable[[Mapping[str, Any]], str],
) -> int:
    """Measure each network and tell of it, in the file as well, before the next. The exit status."""
    print(f"{processor().model}, {args.threads} threads, effort {args.effort}")
    told = []
    try:
        for network in args.networks:
            told.append(measured(network, args))
            print(f"\n{network}\n{text(told[-1])}", flush=True)
            if args.json:
                args.json.write_text(json.dumps({"processor": processor().model, "networks": told}, indent=1))
    except CollageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


def placed(o: Optimization, who: Callable[[Group], str]) -> dict[str, Any]:
    """Who runs how many nodes, and what was known of that."""
    nodes: Counter[str] = Counter()
    for g in o.placement.groups:
        nodes[who(g)] += len(g.nodes)
    return {
        "nodes": dict(nodes),
        "conversions": len(o.placement.conversions),
        "predicted_ms": o.placement.predicted_ms,
        "seconds": round(o.total_s, 1),
    }


def timed(contender: Mapping[str, Any], error: float | None) -> tuple[str, str, str]:
    """A contender's cells: ms, what it takes of Collage's time, and how far it is off."""
    ms, ratio, half = (contender[k] for k in ("median_ms", "ratio", "half_interval"))
    return (
        f"{ms:.2f}" if ms else "-",
        f"{ratio:.3f} +- {half:.3f}" if ratio and half else "-",
        "-" if error is None else f"{error:.1e}",
    )
