"""What an optimisation in the background is asked for, and what it tells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path

from collage_run.archives import ARCHIVE

from collage_core.errors import CollageError
from collage_core.writable import require_folder, require_replaceable

__all__ = ["READY", "REFUSED", "Background", "BackgroundState"]

READY = "ready"
"""The event of a better placement: `path`, `digest`, `label`, `latency_ms`, `stage`, and `longest_s`, seconds
of the longest slice of opening it.
"""
REFUSED = "refused"
"""The event of one that does not take over: `digest`, `label`, `latency_ms`, `stage`, and `reason`."""
_NAME = "background"


@dataclass(frozen=True, slots=True)
class Background:
    """How a `Session` looks for better placements while it answers.

    effort, budget_s, backends, costs: as `optimize` has them; pauses count for nothing. output: the bundle to
    keep what has taken over in; None to keep it no longer than the session. log: a file to write events to, a
    line of JSON each (docs/python-api.md). idle_s: nothing is measured or built before there has been no
    request for so long. first_limit_s: within which a model's first answer has to be there. shapes: of a
    model's inputs with open dimensions, as `optimize` has them.
    """

    effort: str = "normal"
    budget_s: float | None = None
    backends: Sequence[str] | None = None
    costs: str | Path | None = None
    output: str | Path | None = None
    log: str | Path | None = None
    idle_s: float = 0.2
    first_limit_s: float = 600.0
    shapes: Mapping[str, tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.effort, str):
            raise CollageError(f"effort is a name, not {self.effort!r}")
        if self.shapes is not None and not isinstance(self.shapes, Mapping):
            raise CollageError(f"shapes has the sizes of inputs by name; it is {self.shapes!r}")
        for name in ("output", "log", "costs"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | Path):
                raise CollageError(f"{name} is the name of a file, not {value!r}")
        for name in ("idle_s", "first_limit_s", "budget_s"):
            value = getattr(self, name)
            if name == "budget_s" and (value is None or value == math.inf):
                continue
            if not isinstance(value, Real) or not 0.0 <= float(value) < math.inf:
                raise CollageError(f"{name} is a number of seconds from 0 on, not {value!r}")

    def require_places(self, source: Path, *, is_bundle: bool) -> None:
        """CollageError where a file cannot be written, or is another one's, or one that is read. A bundle may
        be replaced by what is found for it.
        """
        kept = {} if self.costs is None else {"cost database": Path(self.costs)}
        if self.output is not None:
            read = kept if is_bundle else {"model": source, **kept}
            require_replaceable(str(self.output), read, ARCHIVE, "bundle")
        if self.log is not None:
            others = {"bundle" if is_bundle else "model": source, **kept}
            others |= {} if self.output is None else {"bundle for what is found": Path(self.output)}
            require_replaceable(str(self.log), others, b"{", "log of events", in_place=True)
        if self.costs is not None:
            require_folder("costs", self.costs)

    def for_another_process(self) -> Background:
        """With paths that mean the same in any folder, and no log: that is one process's."""
        output, costs = (p if p is None else Path(p).absolute() for p in (self.output, self.costs))
        return replace(self, output=output, costs=costs, log=None)

    @classmethod
    def of(cls, asked: str | Background) -> Background:
        """CollageError for another word than "background"."""
        if isinstance(asked, cls):
            return asked
        if asked != _NAME:
            raise CollageError(f"optimize is {asked!r}; known: {_NAME!r}, or a Background")
        return cls()


@dataclass(frozen=True, slots=True)
class BackgroundState:
    """Where an optimisation in the background is.

    state: "running"; "paused", for requests or what is built; "finished"; "failed", and requests are answered
    as before; "closed". label: of the placement that answers, as `Optimization.chosen` says; "" for a bundle
    that was given. latency_ms: what it took when it was compared, None where it was not. phase: what is being
    measured, or was last. swaps: how often another placement has taken over. pauses, paused_s: of measuring.
    late: how often a request has begun before all had stopped. reason: why it has failed, or why the last
    placement that was found does not answer; None otherwise.
    """

    state: str
    label: str = ""
    latency_ms: float | None = None
    phase: str = ""
    swaps: int = 0
    pauses: int = 0
    paused_s: float = 0.0
    late: int = 0
    reason: str | None = None
