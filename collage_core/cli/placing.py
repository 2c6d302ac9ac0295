"""From command-line arguments to an optimisation."""

from __future__ import annotations

import argparse
from pathlib import Path

from collage_core.cli.arguments import constraints_of, names_of, shapes_of, target_of
from collage_core.costs.database import CostDatabase
from collage_core.ir.onnx_io import load_model
from collage_core.ir.passes import normalise
from collage_core.pipeline.optimize import Optimization, optimize_graph
from collage_core.pipeline.progress import Progress
from collage_core.plugins import default_registry

__all__ = ["optimize_from"]


def optimize_from(args: argparse.Namespace, progress: Progress) -> Optimization:
    """Load, normalise and optimise `args.model` as the options of `add_placing` say."""
    registry = default_registry()
    target = target_of(args)
    backends = registry.available(names_of(args.backends))
    constraints = constraints_of(args, registry)
    progress.phase("reading the model")
    graph = normalise(load_model(Path(args.model), shapes_of(args)), args.skip_pass)
    with CostDatabase(args.costs) as database:
        return optimize_graph(
            graph, backends, target, database, registry=registry, constraints=constraints, progress=progress
        )
