"""Records of runs, one JSON file each: `FOLDER/<processor>/<network>/<UTC time>.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage_run.files import replacing

from collage_benchmarks.evidence.machine import slug_of
from collage_benchmarks.evidence.runs import Run
from collage_core.errors import CollageError

__all__ = ["FORMAT", "RUNS_FOLDER", "Counted", "counted", "due", "read_records", "write_record"]

FORMAT = 1
RUNS_FOLDER = Path("docs/results/runs")
"""In the repository."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Counted:
    """How many runs of a network there are; failed: how many of these. latest: the hour in which the last
    one was started (`Run.hour`), "" for none.
    """

    network: str
    runs: int
    failed: int
    latest: str


def write_record(folder: Path, record: Record) -> Path:
    """The file, which is there as a whole or not at all. OSError as from writing."""
    name = record["started"].replace(":", "")
    path = Path(folder, slug_of(record["processor"]), record["network"], f"{name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def read_records(folder: Path) -> list[Record]:
    """All of them, oldest first. CollageError names a file that is no record, or a newer one."""
    found = []
    for path in sorted(folder.glob("*/*/*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            known = record["format"] == FORMAT
        except (ValueError, KeyError, TypeError) as error:
            raise CollageError(f"{path} is no record of a run: {error}") from None
        if not known:
            raise CollageError(f"{path} has format {record['format']}; this program reads {FORMAT}")
        found.append(record)
    return sorted(found, key=lambda r: (r["started"], r["network"]))


def counted(records: Sequence[Record], networks: Sequence[str], slug: str, commit: str) -> list[Counted]:
    """Of each network, the runs that count, on one kind of processor at one commit."""
    ours = [r for r in map(Run, records) if r.counts and r.slug == slug and r.commit == commit]
    of_each = {n: [r for r in ours if r.network == n] for n in networks}
    return [
        Counted(n, len(found), sum(r.is_failed for r in found), max((r.hour for r in found), default=""))
        for n, found in of_each.items()
    ]


def due(counts: Sequence[Counted], runs: int, hour: str) -> str | None:
    """The network with the fewest runs, the first of several; None where all have `runs`, or one of this
    hour: runs are to be of different ones. Failed ones count, or one that always fails would keep all others
    from their turn.
    """
    waiting = [c for c in counts if c.runs < runs and c.latest != hour]
    return min(waiting, key=lambda c: c.runs).network if waiting else None
