"""The process that optimises: what it does, and how it tells of it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from collage_core.background.opening import is_bundle, longest_slice_s
from collage_core.background.options import READY, REFUSED, Background
from collage_core.candidates import Constraints
from collage_core.costs.host import named_variables
from collage_core.costs.limits import worker_memory_bytes
from collage_core.costs.lock import measuring_lock
from collage_core.costs.rounds import OPEN_LIMIT_S
from collage_core.errors import CollageError, WorkerError
from collage_core.ir import Graph
from collage_core.measuring.progress import Silent
from collage_core.pipeline.effort import effort_named
from collage_core.pipeline.optimize import COLLAGE, Optimization, optimize
from collage_core.pipeline.profiles import ProfileFound
from collage_core.placement import Placement
from collage_core.plugins import default_registry
from collage_core.report.constraints import constraints_from
from collage_core.report.keeping import is_kept, keep
from collage_core.runtime import read
from collage_core.target import Target
from collage_core.worker import Worker

__all__ = ["improve"]


def improve(source: Path, wanted: Background, threads: int | None, events: str) -> None:
    """Optimise a model, or what a bundle holds, and tell of each better placement. Runs in a worker.

    events: a file to which events are appended. Each placement lies in a file of its own, which whoever reads
    of it removes. CollageError as from `optimize`, and for a bundle that was made as nobody can ask for here.
    """
    with open(events, "ab", buffering=0) as file:
        model, target, constraints = _asked(source, threads)
        told = _Told(file.fileno())
        numbers = count(1)
        longest_s: dict[str, float] = {}
        refused: set[str] = set()

        def tell(found: Optimization) -> None:
            digest = found.placement.digest
            if digest in refused:
                return
            path = _place(found, source, wanted.output, next(numbers))
            facts = {
                "digest": digest,
                "label": found.chosen,
                "latency_ms": found.comparison.median_ms(COLLAGE) if found.comparison else None,
                "stage": str(found.stage),
            }
            try:
                if digest not in longest_s:
                    longest_s[digest] = _rehearsed(path, found.placement)
            except WorkerError as error:
                refused.add(digest)
                told.add(REFUSED, reason=f"what was found cannot be opened: {error}", **facts)
            else:
                told.add(READY, path=str(path), longest_s=longest_s[digest], **facts)

        tell(
            optimize(
                model,
                backends=wanted.backends,
                target=target,
                shapes=wanted.shapes,
                costs=wanted.costs,
                constraints=constraints,
                progress=told,
                effort=effort_named(wanted.effort),
                budget_s=wanted.budget_s,
                on_best=tell,
            )
        )


def _place(found: Optimization, source: Path, output: str | Path | None, number: int) -> Path:
    """Where it lies: what is to hold what the session answers with is not written to, for nobody knows yet
    whether this does.
    """
    profiles = [ProfileFound(found)]
    if output is not None and is_kept(profiles, str(source), output):
        return Path(output)
    path = Path(tempfile.gettempdir()) / f"found-{number}.collage"
    keep(profiles, str(source), path)
    return path


def _asked(source: Path, threads: int | None) -> tuple[Path | Graph, Target, Constraints | None]:
    """What to optimise, for what, and what the placement has to keep to."""
    model: Path | Graph = source
    target, constraints = Target.default(), None
    if is_bundle(source):
        bundle = read(source, check_weights=True)
        if bundle.report.get("error_limit"):
            raise CollageError(f"{source} was made within a limit of error, which only `optimize` keeps to")
        model, target = bundle.graph, bundle.placement.target
        constraints = constraints_from(bundle.report.get("constraints", {}))
    return model, target if threads is None else replace(target, threads=threads), constraints


def _rehearsed(path: Path, placement: Placement) -> float:
    """Open it in a process of its own, which keeps kernels for others; seconds of the longest slice.
    WorkerError where it cannot be opened.
    """
    registry = default_registry()
    variables = named_variables(registry.available(placement.backends()), placement.target)
    worker = Worker(variables, plugins=registry.modules(), memory_limit_bytes=worker_memory_bytes())
    with worker, measuring_lock():
        return worker.call(longest_slice_s, path, timeout_s=OPEN_LIMIT_S)


class _Told(Silent):
    """Progress as events."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._phase = ""

    def add(self, event: str, **facts: Any) -> None:
        line: Mapping[str, Any] = {"t": time.monotonic(), "event": event, **facts}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def phase(self, name: str, total: int | None = None) -> None:
        if name != self._phase:
            self._phase = name
            self.add("phase", name=name)

    def note(self, text: str) -> None:
        self.add("note", text=text)
