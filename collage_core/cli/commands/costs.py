"""`collage costs`: the database of measured costs."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from collage_run.files import regular, written

from collage_core.cli.arguments import add_costs, costs_of
from collage_core.cli.output import show
from collage_core.costs.database import CostDatabase
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.record import CostKey
from collage_core.costs.recording import reference_environment
from collage_core.costs.roofline import PEAKS, peaks_environment
from collage_core.errors import CostDatabaseError, UnknownBackendError
from collage_core.formats import CPU
from collage_core.measuring.calibration import TRANSITIONS, calibrated_backends, calibration_environment
from collage_core.measuring.end_to_end import end_to_end_environment
from collage_core.measuring.held_out import HELD_OUT, held_out_environment
from collage_core.measuring.priors import PRIORS, priors_environment, priors_of
from collage_core.pipeline.memory import FOUND
from collage_core.pipeline.original import ORIGINAL
from collage_core.pipeline.rounding import ROUNDING
from collage_core.plugins import default_registry
from collage_core.report.tables import Table
from collage_core.target import Target
from collage_core.writable import require_other

NAME = "costs"
SUMMARY = "Show, export, import or prune the measured costs, or make priors of them."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_costs(parser)
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    show = actions.add_parser("show", help="what is in it, by kind, backend and status")
    show.add_argument("--json", action="store_true", help="print JSON on standard output")
    export = actions.add_parser("export", help="write all costs as JSON lines")
    export.add_argument("file", nargs="?", help="where to (default, and -: standard output)")
    import_ = actions.add_parser("import", help="merge JSON lines in; the newer cost wins")
    import_.add_argument("file", help="a file that `collage costs export` wrote")
    prune = actions.add_parser("prune", help="remove costs")
    prune.add_argument("--backend", help="of this backend only")
    prune.add_argument(
        "--failed",
        action="store_true",
        help="of what was infeasible or failed as a whole only, so that it is tried again",
    )
    prune.add_argument(
        "--disturbed",
        action="store_true",
        help="of what was taken while other work disturbed it only, so that it is measured again",
    )
    prune.add_argument(
        "--stale",
        action="store_true",
        help="measured on another machine, or by versions that are not installed now, only",
    )
    prune.add_argument(
        "--older-than", type=float, metavar="DAYS", help="measured more than so many days ago only"
    )
    priors = actions.add_parser("priors", help="what kernels of a backend reached, for a plugin to ship")
    priors.add_argument("backend", help="its name, as `collage backends` has it")
    priors.add_argument("file", nargs="?", help="where to (default, and -: standard output)")
    for action in (show, export, import_, prune, priors):  # before the action or behind it
        add_costs(action, default=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    reads = args.action in ("show", "export", "priors")
    costs = costs_of(args, there=args.action != "import")
    with CostDatabase(costs, may_be_read_only=reads) as database:
        _ACTIONS[args.action](args, database)


def _show(args: argparse.Namespace, database: CostDatabase) -> None:
    counts = Counter((c.key.kind, c.key.backend, c.record.status) for c in database.items())
    rows = [{"kind": k, "backend": b, "status": s, "count": n} for (k, b, s), n in sorted(counts.items())]
    show({"file": str(database.path), "costs": rows}, args.json, _counted)


def _counted(report: Mapping[str, Any]) -> str:
    rows = report["costs"]
    texts = [(str(r["kind"]), str(r["backend"]), str(r["status"]), str(r["count"])) for r in rows]
    total = f"{sum(r['count'] for r in rows)} costs in {report['file']}"
    return f"{total}\n{Table(('kind', 'backend', 'status', 'count'), texts, right=[3])}"


def _export(args: argparse.Namespace, database: CostDatabase) -> None:
    _write(args.file, database, (line + "\n" for line in database.export()))


def _write(path: str | None, database: CostDatabase, lines: Iterable[str]) -> None:
    if path in (None, "-"):
        sys.stdout.writelines(lines)
        return
    require_other(path, {"cost database": database.path})
    with written(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(lines)


def _import(args: argparse.Namespace, database: CostDatabase) -> None:
    try:
        with open(args.file, opener=regular) as file:
            stored = database.import_(file)
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise CostDatabaseError(f"cannot read {args.file}: {said}") from None
    print(f"{stored} costs merged into {database.path}")


def _is_current(key: CostKey) -> bool:
    """Whether the cost was taken by what is installed now, on this machine (with any number of threads).

    CollageError where a device that is here cannot say what it is: nothing is thrown away for that.
    """
    devices = _devices_of(key)
    if not devices <= default_registry().devices.keys():
        return False
    if not all(default_registry().devices[name].info().available for name in devices):
        return True  # as far as can be told
    try:
        return _matches(key)
    except UnknownBackendError:  # not installed any more
        return False


def _matches(key: CostKey) -> bool:
    threads = key.environment.get("threads", "1")
    if key.kind == "end_to_end":
        facts = end_to_end_environment(_target_of(key, threads))
        return key.environment == facts
    if key.kind in (ORIGINAL, ROUNDING):
        return key.environment == reference_environment()
    if key.kind == HELD_OUT:
        return key.environment == held_out_environment(_target_of(key, threads))
    if key.kind == PEAKS:
        return key.environment == peaks_environment(Target(CPU, int(threads)))
    registry = default_registry()
    if key.kind in (TRANSITIONS, FOUND):
        backends = {name: registry.backend(name) for name in calibrated_backends(key)}
        threads = key.environment.get(f"{next(iter(backends))}.threads", "1")
        return key.environment == calibration_environment(backends, _target_of(key, threads))
    backend, target = registry.backend(key.backend), _target_of(key, threads)
    if key.kind == PRIORS:
        return key.environment == priors_environment(backend, target)
    return any(key.environment == environment_of(backend, target, d) for d in (None, *target.devices))


def _devices_of(key: CostKey) -> set[str]:
    """Those beside the CPU whose facts are among those of the key."""
    parts = 3 if key.kind in (TRANSITIONS, FOUND) else 2  # behind a backend's name, or not
    facts = [name.split(".") for name in key.environment]
    return {fact[-2] for fact in facts if len(fact) == parts and fact[-1] == "source"}


def _target_of(key: CostKey, threads: str) -> Target:
    return Target(CPU, int(threads), (), tuple(_devices_of(key)))


def _prune(args: argparse.Namespace, database: CostDatabase) -> None:
    flags = args.failed or args.disturbed or args.stale
    if args.backend is None and args.older_than is None and not flags:
        what = "--backend, --failed, --disturbed, --stale or --older-than"
        raise CostDatabaseError(f"say what to prune: {what}")
    if args.backend is not None:
        known = {c.key.backend for c in database.items()} - {""}  # some are of no backend
        if args.backend not in known | default_registry().backends.keys():
            listed = ", ".join(sorted(known)) or "none"
            raise CostDatabaseError(f"--backend {args.backend!r}: costs are known of {listed}")
    if args.older_than is not None and not 0 <= args.older_than < math.inf:
        raise CostDatabaseError(f"--older-than {args.older_than:g}: expected a number of days, 0 or more")
    older_than_s = None if args.older_than is None else args.older_than * 86400
    current = _is_current if args.stale else None
    pruned = database.prune(
        older_than_s=older_than_s,
        backend=args.backend,
        infeasible=args.failed,
        disturbed=args.disturbed,
        current=current,
    )
    print(f"{pruned} costs removed from {database.path}")


def _priors(args: argparse.Namespace, database: CostDatabase) -> None:
    _write(args.file, database, [priors_of(args.backend, database).to_json()])


_ACTIONS = {"show": _show, "export": _export, "import": _import, "prune": _prune, "priors": _priors}
