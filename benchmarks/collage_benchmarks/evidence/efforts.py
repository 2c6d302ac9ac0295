"""What each effort takes and brings on one network.

All of them cold, one of them once more, the bundles beside each other, and what bounds would have left out.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from collage_benchmarks.evidence.collecting import kept, started_now
from collage_benchmarks.evidence.machine import watching
from collage_benchmarks.evidence.repository import Commit
from collage_benchmarks.evidence.running import Runner, Tools
from collage_core.pipeline.effort import NORMAL, QUICK, THOROUGH

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
    """Each effort with a new database of costs; one of them again, with what it knows; what they have found
    beside each other. At last bounded measuring, replayed on the costs of the one that has measured all.

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
                found[what] = {**kept(json.loads(step.out), _KEPT), "usable_s": step.awaited_s}
        compared = replayed = None
        if not runner.failed:
            bundles = [f"{what}.collage" for what in (STANDARD, *_EFFORTS)]
            module = "collage_benchmarks.evidence.comparing"
            step = runner.run("compare", [*tools.python, "-m", module, *bundles])
            ratios = json.loads(step.out) if step.out else []
            compared = dict(zip((STANDARD, *_EFFORTS), ratios, strict=True)) if ratios else None
        if not runner.failed:
            module = "collage_benchmarks.evidence.replaying"
            command = [*tools.python, "-m", module, f"{STANDARD}.collage"]
            step = runner.run("replay", command, home=STANDARD)
            replayed = json.loads(step.out) if step.out else None
        facts = runner.facts(network, commit, started, backends)
    return {
        **facts,
        "efforts": found,
        "compared": compared,
        "replayed": replayed,
        "others_cpu_s": round(others.total_s, 1),
    }
