"""The best of what an optimization has run so far, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from collage_core.measuring.comparison import Comparison
from collage_core.measuring.progress import Progress
from collage_core.pipeline.optimization import Optimization
from collage_core.pipeline.proof import MIX, Single, label_of
from collage_core.placement import Placement

__all__ = ["BestSoFar"]

_WORTH = 0.98
"""What takes more than this of what the best before takes is no better, as far as one comparison tells."""


class BestSoFar:
    """The fastest of what has run as a whole. on_best: told of each that is better than the one before."""

    def __init__(self, on_best: Callable[[Optimization], object], progress: Progress) -> None:
        self._on_best, self._progress = on_best, progress
        self._is_told = True
        self.known: Optimization | None = None
        """None before anything has run."""
        self.took_ms: float | None = None
        """What that took."""

    def keep(
        self,
        comparison: Comparison,
        placements: Mapping[str, Placement],
        singles: Sequence[Single],
        outcome: Callable[[Placement, str], Optimization],
    ) -> None:
        """The fastest of a comparison, unless what was the best before took no part in it. `tell` tells.

        outcome: what is to be told of a placement of that label.
        """
        losses = comparison.losses()
        right = [name for name, record in comparison.records.items() if record.ok]
        if not right:
            return
        fastest = min(right, key=lambda n: losses[n] if len(right) > 1 else 0.0)
        placement = placements[fastest]
        if self.known is not None:
            digests = {p.digest: name for name, p in placements.items()}
            before = digests.get(self.known.placement.digest)
            if before is None or self.known.placement.digest == placement.digest:
                return
            ratio = comparison.ratio(fastest, before)
            if ratio is not None and ratio.value > _WORTH:
                return
        label = label_of(placement, singles, MIX)
        took_ms = comparison.median_ms(fastest)
        assert took_ms is not None  # of one that ran
        alone = {s.placement.digest: s.label for s in singles if s.placement is not None}
        singles_ms = {
            alone[p.digest]: ms
            for name, p in placements.items()
            if p.digest in alone and (ms := comparison.median_ms(name)) is not None
        }
        single = min(singles_ms, key=singles_ms.__getitem__, default=None)
        self._progress.best(label, took_ms, single, None if single is None else singles_ms[single])
        self.known, self.took_ms, self._is_told = outcome(placement, label), took_ms, False

    def tell(self) -> None:
        """Of what is known, unless that has been done."""
        if self.known is not None and not self._is_told:
            self._on_best(self.known)
            self._is_told = True
