"""`python -m collage_benchmarks.sweep`: are the settings in use the libraries' best?

For each network and each use of a library (whole runtimes called directly; graph libraries as backends, with
the whole graph or in pieces; the operator libraries in a mix), settings of a small grid beside those in use,
in one run of alternating rounds. One file for each under docs/results/sweeps; those that are there at this
commit are kept, so that it goes on where it was. Then docs/results/sweeps/README.md is written from all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage_run.files import replacing

from collage_benchmarks.evidence.collecting import require_packages_of
from collage_benchmarks.evidence.machine import end_on_sigterm, processor_json, require_idle, slug_of
from collage_benchmarks.evidence.repository import Commit, commit_of, root_of
from collage_benchmarks.networks import add_networks
from collage_benchmarks.sweep.grid import USES, Use, choices
from collage_benchmarks.sweep.measuring import FORMAT, measure_use, software
from collage_benchmarks.sweep.page import conclusion, page
from collage_core.cli.progress import ProgressBars
from collage_core.costs.ratio import FEWEST_SITTINGS
from collage_core.errors import CollageError
from collage_core.plugins import default_registry
from collage_core.target import Target

__all__ = ["SWEEPS_FOLDER", "main", "read_sweeps"]

_NETWORKS = ("resnext50", "bert_base", "dcgan", "squeezenet", "densenet121", "inception_v2")
SWEEPS_FOLDER = Path("docs/results/sweeps")
"""In the repository."""
_PAGE = "README.md"
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m collage_benchmarks.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [u.name for u in USES]
    add_networks(parser, "--networks", nargs="*", default=_NETWORKS)
    parser.add_argument(
        "--uses",
        nargs="*",
        default=names,
        metavar="USE",
        help=f"of libraries: {', '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--sittings",
        type=int,
        default=FEWEST_SITTINGS,
        help="of all choices; those that may be faster have up to 12 (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, help="for every library (default: all of this process)")
    parser.add_argument("--costs", type=Path, metavar="FILE", help="cost database of the mixes")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"default: {SWEEPS_FOLDER}")
    parser.add_argument("--allow-dirty", action="store_true", help="even where files differ from the commit")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    args = parser.parse_args(arguments)
    for use in args.uses:
        if use not in names:
            parser.error(f"unknown: {use!r}; known: {', '.join(names)}")
    if args.sittings < 1:
        parser.error("--sittings must be at least 1")
    end_on_sigterm()
    try:
        root = root_of(Path.cwd())
        out: Path = args.out or root / SWEEPS_FOLDER
        if not args.page:
            _sweep(args, root, out)
        sweeps = read_sweeps(out)
        with replacing(out / _PAGE) as partial:
            partial.write_text(page(sweeps), encoding="utf-8")
        print(out / _PAGE)
    except CollageError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"sweep: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sweep: interrupted; what was finished is kept", file=sys.stderr)
        return _INTERRUPTED
    return 0


def read_sweeps(folder: Path) -> list[dict[str, Any]]:
    """CollageError names a file that is none, or a newer one."""
    found = []
    for path in sorted(folder.glob("*/*/*.json")):
        try:
            sweep = json.loads(path.read_text(encoding="utf-8"))
            known = sweep["format"] == FORMAT
        except (ValueError, KeyError, TypeError) as error:
            raise CollageError(f"{path} is no sweep: {error}") from None
        if not known:
            raise CollageError(f"{path} has format {sweep['format']}; this program reads {FORMAT}")
        found.append(sweep)
    return found


def _sweep(args: argparse.Namespace, root: Path, out: Path) -> None:
    commit = commit_of(root)
    if commit.dirty and not args.allow_dirty:
        raise CollageError("files differ from the commit, to which figures must belong (see git status)")
    require_packages_of(root)
    target = Target("cpu", args.threads) if args.threads else Target.default()
    folder = out / slug_of(processor_json())
    failed: list[str] = []
    for network in args.networks:
        for use in (u for u in USES if u.name in args.uses):
            path = folder / network / f"{use.name}.json"
            if _is_done(path, use, target, commit, args.sittings):
                continue
            require_idle()
            try:
                with ProgressBars() as progress:
                    sweep = measure_use(network, use, target, args.sittings, args.costs, commit, progress)
            except CollageError as error:
                print(f"{network}, {use}: {error}", file=sys.stderr, flush=True)
                failed.append(f"{network}, {use}")
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                partial.write_text(json.dumps(sweep, indent=1) + "\n", encoding="utf-8")
            print(f"{network}, {use}: {conclusion([sweep])}", flush=True)
    if failed:
        raise CollageError(f"not measured: {'; '.join(failed)}")


def _is_done(path: Path, use: Use, target: Target, commit: Commit, sittings: int) -> bool:
    """Whether just these choices were measured with this program and these libraries."""
    if not path.is_file():
        return False
    sweep = json.loads(path.read_text(encoding="utf-8"))
    asked = [[c.label, dict(c.settings), dict(c.environment)] for c in choices(use, target)]
    found = [[c["label"], c["settings"], c["environment"]] for c in sweep["choices"]]
    made = [sweep[k] for k in ("format", "threads", "sittings", "software")]
    same = made == [FORMAT, target.threads, sittings, json.loads(json.dumps(software(default_registry())))]
    return same and sweep["commit"]["id"] == commit.id and found == asked and not sweep["dirty"]


if __name__ == "__main__":
    sys.exit(main())
