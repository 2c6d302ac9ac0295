"""One whole run of one network, as a person would make it, in processes of its own."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collage_benchmarks.evidence.machine import os_version, processor_json, watching
from collage_benchmarks.evidence.records import FORMAT
from collage_benchmarks.evidence.repository import Commit
from collage_core.costs import CostDatabase
from collage_core.errors import CollageError
from collage_core.pipeline.comparison import RUN

__all__ = ["Tools", "collect_run", "require_packages_of", "started_now"]

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
_COMPARISONS = ("choosing", "confirming", "confirming again", "benchmark")
_PREFIXES = (
    "COLLAGE_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "ONEDNN_",
    "DNNL_",
    "OPENBLAS_",
    "TVM_",
    "ORT_",
    "OV_",
)
"""Of environment variables that change what is measured: all of them are left out, so that defaults hold."""
_KEPT = ("COLLAGE_LOCK",)
_LAST_LINES = 12
_INTERRUPTED = (130, 143, -2, -15)
_ONEDNN_VERSION = "from collage_dnnl.library import load; print(load().version)"
"""Its package is numbered by the year."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The commands that a run starts: Collage's own, and Python with the benchmarks."""

    collage: tuple[str, ...] = (str(Path(sysconfig.get_path("scripts"), "collage")),)
    python: tuple[str, ...] = (sys.executable, "-P")


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    command: str
    exit_code: int
    seconds: float
    out: str
    told: tuple[str, ...]


def require_packages_of(root: Path) -> None:
    """CollageError unless it is this repository's Collage that is installed here, with all its plugins."""
    names = ["collage_core", "collage_cli", *(p.name for p in sorted(root.glob("plugins/collage_*")))]
    specs = {name: importlib.util.find_spec(name) for name in names}
    if missing := [name for name, spec in specs.items() if spec is None]:
        raise CollageError(f"not installed: {', '.join(missing)}; runs without them are of no table")
    for name, spec in specs.items():
        origin = spec.origin if spec is not None else None
        if origin and not Path(origin).resolve().is_relative_to(root.resolve()):
            raise CollageError(
                f"the installed {name} is not this repository's; install it from here, editable"
            )


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
        runner = _Runner(Path(name).resolve(), tools)
        backends = runner.json("backends", [*tools.collage, "backends", "--json"])
        peers = [b["name"] for b in backends if b["kind"] == "peer" and b["available"]]
        if not peers:
            raise CollageError("no whole runtime is installed to compare with (see `collage backends`)")
        model, bundle = f"{network}.onnx", f"{network}.collage"
        against = ["--against", ",".join(peers), "--original", model]
        found: dict[str, Any] = {}
        failed = None
        steps = {
            "build": [*tools.python, "-m", "collage_benchmarks.networks", network, "-o", model],
            "optimize": [*tools.collage, "optimize", model, "-o", bundle, "--json"],
            "bench": [*tools.collage, "bench", bundle, *against, "--json"],
        }
        for what, command in steps.items():
            step = runner.run(what, command)
            if what != "build" and step.out:
                found[what] = json.loads(step.out)
            if step.exit_code:
                failed = {
                    "step": what,
                    "exit_code": step.exit_code,
                    "last_lines": list(step.told[-_LAST_LINES:]),
                }
                break
        optimized = found.get("optimize")
        record = {
            "format": FORMAT,
            "network": network,
            "model_sha256": runner.digest(model),
            "processor": processor_json(),
            "commit": {"id": commit.id, "date": commit.date},
            "head": commit.head,
            "dirty": commit.dirty,
            "started": started,
            "commands": [s.command for s in runner.steps],
            "settings": {
                "effort": optimized["effort"] if optimized else None,
                "threads": optimized["threads"] if optimized else None,
            },
            "software": {
                "python": platform.python_version(),
                "system": os_version(),
                "onednn": runner.onednn_version(),
                "backends": backends,
            },
            "seconds": {s.name: round(s.seconds, 1) for s in runner.steps},
            "exit_codes": {s.name: s.exit_code for s in runner.steps},
            "notes": {s.name: list(s.told) for s in runner.steps if s.told},
            "failed": failed,
            "optimize": _kept(optimized, _OPTIMIZE),
            "bench": _kept(found.get("bench"), _BENCH),
            "sittings": sittings_of_database(runner.costs),
        }
    return {**record, "others_cpu_s": round(others.total_s, 1)}


class _Runner:
    """Runs commands in a folder, with defaults for all that the environment could change."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.folder, self.steps = folder, list[_Step]()
        self._tools = tools
        self._home = folder / "home"
        kept = {k: v for k, v in os.environ.items() if k in _KEPT or not k.startswith(_PREFIXES)}
        # What is told is kept by the line, however long.
        self._environment = {**kept, "COLLAGE_HOME": str(self._home), "COLUMNS": "1000"}

    @property
    def costs(self) -> Path:
        return self._home / "costs.sqlite"

    def run(self, name: str, command: Sequence[str]) -> _Step:
        """A step of the run, whatever its exit code. CollageError where somebody else has interrupted it."""
        step = self._run(name, command)
        if step.exit_code in _INTERRUPTED:
            raise CollageError(f"{name} was interrupted; nothing is recorded")
        self.steps.append(step)
        return step

    def json(self, name: str, command: Sequence[str]) -> Any:
        """What a command prints that is to be known before the run. CollageError if it fails."""
        step = self._run(name, command)
        if step.exit_code:
            raise CollageError(f"{name}: {step.told[-1] if step.told else f'exit code {step.exit_code}'}")
        return json.loads(step.out)

    def onednn_version(self) -> str | None:
        """None where it is not installed."""
        step = self._run("version", [*self._tools.python, "-c", _ONEDNN_VERSION])
        return None if step.exit_code else step.out.strip()

    def digest(self, file: str) -> str | None:
        """SHA-256; None where there is no such file."""
        path = self.folder / file
        if not path.is_file():
            return None
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()

    def _run(self, name: str, command: Sequence[str]) -> _Step:
        out, told = (self.folder / f"{name}.{stream}" for stream in ("out", "err"))
        start_s = time.monotonic()
        with out.open("wb") as stdout, told.open("wb") as stderr:
            # In a session of its own: where Ctrl-C reached it, too, it would end its search and go on.
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                code = process.wait()
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        seconds = time.monotonic() - start_s
        lines = self._plain(told.read_text(errors="replace")).splitlines()
        return _Step(name, self._shown(command), code, seconds, out.read_text(), tuple(filter(None, lines)))

    def _shown(self, command: Sequence[str]) -> str:
        """As a person would type it, without this machine's paths."""
        for prefix, word in ((self._tools.collage, "collage"), (self._tools.python, "python")):
            if tuple(command[: len(prefix)]) == prefix:
                return shlex.join([word, *command[len(prefix) :]])
        raise ValueError(f"neither Collage nor Python: {command}")

    def _plain(self, text: str) -> str:
        return text.replace(f"{self.folder}/", "").replace(str(self.folder), ".")


def _kept(report: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Any] | None:
    """CollageError where the program that was run reports something else."""
    if report is None:
        return None
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
