"""`python -m collage_benchmarks.evidence`: collect whole runs one by one, and write the tables from them.

    collect   one run of the network with the fewest ones, recorded under docs/results/runs
    efforts   the same of one network with each effort, recorded under docs/results/efforts
    status    what is there, and what is due
    tables    README.md and the pages of docs/results from the records; --check only says what differs

A run is `collage optimize` with a new cost database, and `collage bench` of its bundle beside every whole
runtime: some five minutes. One of each effort takes some twenty. To be called whenever the machine is idle.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from collage_benchmarks.evidence.collecting import collect_run, require_packages_of, started_now
from collage_benchmarks.evidence.efforts import EFFORTS_FOLDER, collect_efforts
from collage_benchmarks.evidence.machine import (
    end_on_sigterm,
    processor_json,
    require_idle,
    slug_of,
    title_of,
)
from collage_benchmarks.evidence.pages import stale_pages, write_pages
from collage_benchmarks.evidence.records import RUNS_FOLDER, counted, due, read_records, write_record
from collage_benchmarks.evidence.repository import commit_of, root_of
from collage_benchmarks.networks import add_networks
from collage_core.errors import CollageError
from collage_core.report.tables import Table

__all__ = ["main"]

_NETWORKS = ("resnext50", "bert_base", "dcgan", "squeezenet", "densenet121", "inception_v2")
_OF_EFFORTS = (*_NETWORKS, "mobilenet_v2", "nasnet_a", "resnet1001")
_RUNS = 5
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where it cannot be done, a run failed, or (`tables --check`) something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m collage_benchmarks.evidence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    collect = commands.add_parser("collect", help="make one run")
    efforts = commands.add_parser("efforts", help="make one run of each effort")
    status = commands.add_parser("status", help="say what is there, and what is due")
    tables = commands.add_parser("tables", help="write the tables")
    for command, networks, runs in (
        (collect, _NETWORKS, _RUNS),
        (status, _NETWORKS, _RUNS),
        (efforts, _OF_EFFORTS, 1),
    ):
        add_networks(command, "--networks", default=networks)
        command.add_argument(
            "--runs", type=int, default=runs, help="of each network at this commit (default: %(default)s)"
        )
    for command in (collect, efforts):
        command.add_argument(
            "--allow-dirty",
            action="store_true",
            help="even where files differ from the commit, which tables say or leave it out for",
        )
    tables.add_argument("--check", action="store_true", help="write nothing, say what differs")
    for command, run, folder in (
        (collect, _collect, RUNS_FOLDER),
        (efforts, _collect, EFFORTS_FOLDER),
        (status, _status, RUNS_FOLDER),
        (tables, _tables, RUNS_FOLDER),
    ):
        command.add_argument("--out", type=Path, metavar="FOLDER", help=f"of the records (default: {folder})")
        command.set_defaults(run=run, folder=folder)
    collect.set_defaults(collected=collect_run)
    efforts.set_defaults(collected=collect_efforts)
    args = parser.parse_args(arguments)
    if getattr(args, "runs", 1) < 1:
        parser.error("--runs must be at least 1")
    end_on_sigterm()
    try:
        root = root_of(Path.cwd())
        args.out = args.out or root / args.folder
        code: int = args.run(args, root)
    except CollageError as error:
        print(f"evidence: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"evidence: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("evidence: interrupted; nothing is recorded of this run", file=sys.stderr)
        return _INTERRUPTED
    return code


def _collect(args: argparse.Namespace, root: Path) -> int:
    commit = commit_of(root)
    if commit.dirty and not args.allow_dirty:
        raise CollageError("files differ from the commit, to which figures must belong (see git status)")
    require_packages_of(root)
    counts = counted(read_records(args.out), args.networks, slug_of(processor_json()), commit.id)
    network = due(counts, args.runs, _hour())
    if network is None:
        print(f"nothing is due: all have {args.runs} runs at {commit.id[:7]}, or one of this hour")
        return 0
    require_idle()
    print(f"{network}: a run at {commit.id[:7]} ...", file=sys.stderr)
    record = args.collected(network, commit)
    print(write_record(args.out, record))
    if record["failed"]:
        step, last = record["failed"]["step"], "".join(record["failed"]["last_lines"][-1:])
        raise CollageError(f"{network}: {step} failed, which is recorded: {last}")
    return 0


def _status(args: argparse.Namespace, root: Path) -> int:
    commit, processor = commit_of(root), processor_json()
    counts = counted(read_records(args.out), args.networks, slug_of(processor), commit.id)
    print(f"{title_of(processor)}, at {commit.id[:7]}{', which files differ from' if commit.dirty else ''}\n")
    rows = [(c.network, f"{c.runs} of {args.runs}", str(c.failed)) for c in counts]
    print(Table(("network", "runs", "failed"), rows, right=[1, 2]))
    print(f"\nnext: {due(counts, args.runs, _hour()) or 'nothing is due in this hour'}")
    return 0


def _hour() -> str:
    return started_now()[:13]


def _tables(args: argparse.Namespace, root: Path) -> int:
    records, efforts = read_records(args.out), read_records(root / EFFORTS_FOLDER)
    if not args.check:
        for path in write_pages(root, records, efforts):
            print(path)
        return 0
    stale = stale_pages(root, records, efforts)
    for path, text in stale.items():
        name = str(path.relative_to(root))
        lines = path.read_text(encoding="utf-8").splitlines()
        print(*difflib.unified_diff(lines, text.splitlines(), name, "the records", lineterm=""), sep="\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
