"""What a record says, by the questions that the tables ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collage_benchmarks.evidence.machine import MOST_BUSY, slug_of, title_of
from collage_core.costs.ratio import FEWEST_SITTINGS
from collage_core.pipeline.benchmark import PEER
from collage_core.pipeline.effort import effort_named
from collage_core.pipeline.proof import COLLAGE
from collage_core.placement import VIEW

__all__ = ["AHEAD", "ENOUGH_RUNS", "FASTER", "ITSELF", "SLOWER", "TIE", "Beside", "Run"]

REFERENCE = "+reference"
"""Ends the label of a backend for which the reference ran what it declines."""
REAL_SHARE = 0.03
"""Of the time: a library with less is not named as part of a mix."""

FASTER, TIE, SLOWER, ITSELF = "faster", "too close to call", "may be slower", "one library alone"
AHEAD = "faster than all that came near"
"""Others were left out behind, after too few sittings for an interval."""
ENOUGH_RUNS = 3
"""Of a network, from as many different hours."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A contender beside Collage in one run: its time over Collage's, between steady turns and as it came,
    None where unknown. half_interval: of `ratio`, half its 95 % confidence interval. is_slower: than Collage,
    beyond what is uncertain. was_behind: left out after too few sittings to say so, slower in each round.
    """

    name: str
    ratio: float
    half_interval: float | None
    as_it_came: float | None
    is_slower: bool
    was_behind: bool = False

    @property
    def backend(self) -> str:
        """Whose it is, the reference's help aside."""
        return self.name.removesuffix(REFERENCE)


@dataclass(frozen=True)
class Run:
    """One record. Only of `is_good` ones there is more than the facts of how it was made."""

    record: Mapping[str, Any]

    @property
    def network(self) -> str:
        return str(self.record["network"])

    @property
    def slug(self) -> str:
        return slug_of(self.record["processor"])

    @property
    def title(self) -> str:
        return title_of(self.record["processor"])

    @property
    def commit(self) -> str:
        return str(self.record["commit"]["id"])

    @property
    def hour(self) -> str:
        """In which it was started: an ISO 8601 time up to the hour, UTC."""
        return str(self.record["started"])[:13]

    @property
    def is_failed(self) -> bool:
        return self.record["failed"] is not None

    @property
    def is_clean(self) -> bool:
        """Whether it is one of the commit's own files."""
        return not self.record["dirty"]

    @property
    def others_share(self) -> float:
        """Of all processors' time during the run, what processes of somebody else used."""
        all_s = sum(self.record["seconds"].values()) * self.record["processor"]["cpus"]
        return float(self.record["others_cpu_s"] / max(all_s, 1e-9))

    @property
    def is_quiet(self) -> bool:
        """Whether that was no more than is let through before a run."""
        return self.others_share <= MOST_BUSY

    @property
    def counts(self) -> bool:
        """Whether it is one of the runs that tables are made from, failed or not."""
        return self.is_clean and self.is_quiet

    @property
    def is_good(self) -> bool:
        return self.counts and not self.is_failed

    @property
    def ms(self) -> float:
        """Of Collage's median run, in the comparison that confirmed its choice."""
        return float(self.record["optimize"]["contenders"][COLLAGE]["median_ms"])

    @property
    def libraries(self) -> dict[str, float]:
        """Shares of the time of those that have a real one; of the nodes where no kernel was timed alone."""
        shares = {n: s for n, s in self.record["optimize"]["shares"].items() if n != VIEW}
        found = {name: s["share"] for name, s in shares.items()}
        if not any(found.values()):
            total = sum(s["nodes"] for s in shares.values())
            found = {name: s["nodes"] / total for name, s in shares.items()}
        return {name: share for name, share in found.items() if share > REAL_SHARE}

    @property
    def is_single(self) -> bool:
        """Whether one backend alone was chosen, whatever else the search had found."""
        return self._is_of_one(self.record["optimize"]["chosen"])

    @cached_property
    def singles(self) -> tuple[Beside, ...]:
        """Every backend alone that ran, the fastest first; the chosen one itself where that is one."""
        return tuple(sorted(self._beside("optimize", self._is_of_one), key=lambda b: b.ratio))

    @property
    def peers(self) -> tuple[Beside, ...]:
        """Whole runtimes, called directly."""
        return self._beside("bench", lambda name: name.startswith(PEER))

    @property
    def best_as_it_came(self) -> float | None:
        """The least time of a backend alone over Collage's where nothing waited and nothing was retaken."""
        return min((b.as_it_came for b in self.singles if b.as_it_came is not None), default=None)

    @property
    def verdict(self) -> str:
        """Collage beside every backend alone, as far as that is certain. Faster is what was so while the
        processors were as usual, beyond what is uncertain, and no slower as it came. `AHEAD`: some have too
        few sittings for that, and were behind in every round.
        """
        if any(self._is_of_one(name) for name in self.record["optimize"]["beaten_by"]):
            return SLOWER
        if self.is_single:
            return ITSELF
        is_ahead = all(b.is_slower or b.was_behind for b in self.singles) and any(
            b.is_slower for b in self.singles
        )
        if not is_ahead or (self.best_as_it_came or 1.0) < 1.0:
            return TIE
        return AHEAD if any(b.was_behind for b in self.singles) else FASTER

    def _beside(self, report: str, is_wanted: Any) -> tuple[Beside, ...]:
        contenders = self.record[report]["contenders"]
        return tuple(
            Beside(
                name,
                c["ratio"],
                c["half_interval"],
                c["ratio_as_it_came"],
                c["is_slower"],
                self._was_behind(c),
            )
            for name, c in contenders.items()
            if is_wanted(name) and c["ratio"] is not None
        )

    def _was_behind(self, contender: Mapping[str, Any]) -> bool:
        rounds = contender.get("ratio_of_rounds")  # older records have none
        if rounds is None or contender["sittings"] >= FEWEST_SITTINGS:
            return False
        behind = effort_named(self.record["settings"]["effort"]).behind
        return bool(contender["ratio"] >= behind and rounds[0] > 1.0)

    def _is_of_one(self, name: str) -> bool:
        backends = [b["name"] for b in self.record["software"]["backends"] if b["kind"] not in _NO_BACKENDS]
        return name.removesuffix(REFERENCE) in backends


_NO_BACKENDS = ("peer", "plugin")
