"""One whole run of one network, as a person would make it, in processes of its own."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collage_benchmarks.evidence.machine import watching
from collage_benchmarks.evidence.repository import Commit
from collage_benchmarks.evidence.running import Runner, Tools
from collage_core.costs import CostDatabase
from collage_core.errors import CollageError
from collage_core.measuring.comparison import RUN

__all__ = ["collect_run", "kept", "require_packages_of", "started_now"]

_OPTIMIZE = (
    "contenders",
    "beaten_by",
    "chosen",
    "shares",
    "predicted_ms",
    "search",
    "effort",
    "stage",
    "is_cut_short",
)
_BENCH = ("contenders", "max_rel_error")
_GPU_CLASSIFIER = "Environment :: GPU"
"""As https://pypi.org/classifiers has it."""
_COMPARISONS = ("choosing", "confirming", "confirming again", "benchmark")


def require_packages_of(root: Path) -> None:
    """CollageError unless it is this repository's Collage that is installed here, with all its plugins.

    Those whose classifiers say that they are for a GPU are not asked for: the tables are of processors. Nor
    is what brings no backend.
    """
    plugins = [p.parent.name for p in sorted(root.glob("plugins/*/pyproject.toml")) if _takes_part(p)]
    names = ["collage_core", "collage_cli", *plugins]
    specs = {name: importlib.util.find_spec(name) for name in names}
    if missing := [name for name, spec in specs.items() if spec is None]:
        raise CollageError(f"not installed: {', '.join(missing)}; runs without them are of no table")
    for name, spec in specs.items():
        origin = spec.origin if spec is not None else None
        if origin and not Path(origin).resolve().is_relative_to(root.resolve()):
            raise CollageError(
                f"the installed {name} is not this repository's; install it from here, editable"
            )


def _takes_part(pyproject: Path) -> bool:
    project = tomllib.loads(pyproject.read_text())["project"]
    is_for_gpus = any(c.startswith(_GPU_CLASSIFIER) for c in project.get("classifiers", ()))
    return "collage" in project.get("entry-points", ()) and not is_for_gpus


def started_now() -> str:
    """The time as records have it: ISO 8601, UTC, seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def collect_run(network: str, commit: Commit, tools: Tools | None = None) -> dict[str, Any]:
    """Build the network, optimise it with a new cost database, and compare it with every peer.

    A step that fails ends the run and is recorded with its last lines. CollageError where nothing could be
    recorded: no peer is available, or a step was interrupted by somebody else.
    """
    tools = tools or Tools()
    started = started_now()
    with tempfile.TemporaryDirectory(prefix="collage-evidence-") as name, watching() as others:
        runner = Runner(Path(name).resolve(), tools)
        backends = runner.json("backends", [*tools.collage, "backends", "--json"])
        peers = [b["name"] for b in backends if b["kind"] == "peer" and b["available"]]
        if not peers:
            raise CollageError("no whole runtime is installed to compare with (see `collage backends`)")
        model, bundle = f"{network}.onnx", f"{network}.collage"
        against = ["--against", ",".join(peers), "--original", model]
        found: dict[str, Any] = {}
        steps = {
            "build": [*tools.python, "-m", "collage_benchmarks.networks", network, "-o", model],
            "optimize": [*tools.collage, "optimize", model, "-o", bundle, "--json"],
            "bench": [*tools.collage, "bench", bundle, *against, "--json"],
        }
        for what, command in steps.items():
            step = runner.run(what, command)
            if what != "build" and step.out:
                found[what] = json.loads(step.out)
            if runner.failed:
                break
        optimized = found.get("optimize")
        record = {
            **runner.facts(network, commit, started, backends),
            "settings": {
                "effort": optimized["effort"] if optimized else None,
                "threads": optimized["threads"] if optimized else None,
            },
            "optimize": kept(optimized, _OPTIMIZE) if optimized else None,
            "bench": kept(found["bench"], _BENCH) if "bench" in found else None,
            "sittings": sittings_of_database(runner.costs()),
        }
    return {**record, "others_cpu_s": round(others.total_s, 1)}


def kept(report: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """CollageError where the program that was run reports something else."""
    if missing := [n for n in names if n not in report]:
        raise CollageError(f"the report of this Collage has no {', '.join(missing)}")
    return {n: report[n] for n in names}


@dataclass(slots=True)
class _Sitting:
    """A sitting of an end-to-end comparison, all contenders together. as_it_comes: whether it waited for
    nothing and took nothing again. kept and thrown_away: turns. kept_moved: of those kept, how many ended
    with processors that had been moved.
    """

    comparison: str
    as_it_comes: bool
    kept: int = 0
    kept_moved: int = 0
    thrown_away: int = 0
    waited_s: float = 0.0


def sittings_of_database(costs: Path) -> list[dict[str, Any]]:
    """Of the comparisons that chose, confirmed and went beside peers, in the order in which they were made;
    none where nothing was measured.
    """
    if not costs.is_file():
        return []
    found: dict[tuple[object, int], _Sitting] = {}
    with CostDatabase(costs) as database:
        for item in database.items():
            if item.key.kind != "end_to_end" or item.key.variant not in _COMPARISONS or not item.record.ok:
                continue
            details: Mapping[str, Any] = item.record.details
            for number, told in enumerate(details["sittings"]):
                empty = _Sitting(item.key.variant, told["as_it_comes"])
                sitting = found.setdefault((details[RUN], number), empty)
                for turn in told["turns"]:
                    sitting.thrown_away += turn["taken_again"]
                    sitting.kept += not turn["taken_again"]
                    sitting.kept_moved += turn["moved"] and not turn["taken_again"]
                    sitting.waited_s += turn["waited_s"]
    return [{**asdict(s), "waited_s": round(s.waited_s, 1)} for s in found.values()]
