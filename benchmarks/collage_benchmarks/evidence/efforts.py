"""What each effort takes and brings on one network: all of them cold, one of them once more, and the bundles
compared with each other in one run.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage_benchmarks.evidence.collecting import started_now
from collage_benchmarks.evidence.machine import watching
from collage_benchmarks.evidence.repository import Commit
from collage_benchmarks.evidence.running import Runner, Tools
from collage_core.pipeline.benchmark import benchmark
from collage_core.pipeline.comparison import placement_entrant
from collage_core.pipeline.effort import NORMAL, QUICK, THOROUGH
from collage_core.pipeline.progress import Silent
from collage_core.pipeline.proof import COLLAGE
from collage_core.plugins import default_registry
from collage_core.report.summary import bench_json
from collage_core.runtime.bundle import read

__all__ = ["AGAIN", "EFFORTS_FOLDER", "STANDARD", "collect_efforts"]

EFFORTS_FOLDER = Path("docs/results/efforts")
"""In the repository."""

AGAIN = "again"
"""What is run once more, with the costs that are known then."""
STANDARD = THOROUGH.name
"""What the others' answers are compared with."""
_EFFORTS = (QUICK.name, NORMAL.name, THOROUGH.name)
_AGAIN = NORMAL.name
_KEPT = ("chosen", "contenders", "beaten_by", "shares", "predicted_ms", "stage", "is_cut_short", "search")


def collect_efforts(network: str, commit: Commit, tools: Tools | None = None) -> dict[str, Any]:
    """Each effort with a new database of costs; then one again, with what it knows; then what they have found
    beside each other.

    A step that fails ends the run and is recorded. CollageError where a step was interrupted.
    """
    tools = tools or Tools()
    started = started_now()
    with tempfile.TemporaryDirectory(prefix="collage-efforts-") as name, watching() as others:
        runner = Runner(Path(name).resolve(), tools)
        backends = runner.json("backends", [*tools.collage, "backends", "--json"])
        model = f"{network}.onnx"
        runner.run("build", [*tools.python, "-m", "collage_benchmarks.networks", network, "-o", model])
        found: dict[str, dict[str, Any]] = {}
        for what, effort in (*((e, e) for e in _EFFORTS), (AGAIN, _AGAIN)):
            if runner.failed:
                break
            bundle = f"{what}.collage"
            command = [*tools.collage, "optimize", model, "--effort", effort, "-o", bundle, "--json"]
            step = runner.run(what, command, home=effort, awaited=bundle)
            if step.out:
                report = json.loads(step.out)
                found[what] = {**{k: report[k] for k in _KEPT}, "usable_s": step.awaited_s}
        bundles = {what: runner.folder / f"{what}.collage" for what in _EFFORTS}
        compared = None if runner.failed else _compared(bundles, runner.costs())
        facts = runner.facts(network, commit, started, backends)
    return {**facts, "efforts": found, "compared": compared, "others_cpu_s": round(others.total_s, 1)}


def _compared(bundles: Mapping[str, Path], costs: Path) -> dict[str, Any]:
    """Ratios to what `STANDARD` has found, by effort; of equal placements one is run for all."""
    registry = default_registry()
    found = {what: read(path) for what, path in bundles.items()}
    standard = found[STANDARD]
    names = {standard.placement.digest: COLLAGE}
    for what, bundle in found.items():
        names.setdefault(bundle.placement.digest, what)
    placements = {names[b.placement.digest]: b.placement for b in found.values()}
    entrants = [placement_entrant(name, p, registry) for name, p in placements.items()]
    costs.parent.mkdir(parents=True, exist_ok=True)
    result = benchmark(
        standard.graph,
        entrants,
        [],
        standard.placement.target,
        None,
        costs=costs,
        rounds=None,
        progress=Silent(),
    )
    contenders = bench_json(result.comparison, [], {})["contenders"]
    return {what: contenders[names[b.placement.digest]] for what, b in found.items()}
