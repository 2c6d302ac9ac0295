"""What an optimisation has found, kept as a bundle with its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage_core.errors import CollageError
from collage_core.pipeline.profiles import ProfileFound
from collage_core.report.summary import optimization_json
from collage_core.runtime.bundle import Bundle, holds, read_profiles, save

__all__ = ["keep"]

_OF_ONE_CALL = ("is_cut_short", "original", "search")
"""Parts of a report that say what a call had to do for its answer."""


def keep(found: Sequence[ProfileFound], model: str, path: str | Path | None) -> list[dict[str, Any]]:
    """Save what was found, where a file is named, and return the reports. What was found before, and is
    there, stays as it is: with when and how long it was measured. BundleError as from `save`.
    """
    bundles = [_bundle(one, model) for one in found]
    is_recalled = all(one.optimization.is_recalled for one in found)
    if path is not None and not (is_recalled and _has(path, bundles)):
        save(bundles if len(bundles) > 1 else bundles[0], path)
    return [dict(bundle.report) for bundle in bundles]


def _bundle(found: ProfileFound, model: str) -> Bundle:
    one = found.optimization
    report = optimization_json(one, model)
    return Bundle(one.graph, one.placement, report, singles=one.rivals, rows=found.rows, serving=one.serving)


def _has(path: str | Path, bundles: Sequence[Bundle]) -> bool:
    """Whether they are there already, be it with further ones that a call before had found behind them."""
    if holds(path, bundles if len(bundles) > 1 else bundles[0], whatever=_OF_ONE_CALL):
        return True
    try:
        there = read_profiles(path)
    except CollageError:
        return False
    digests = [bundle.placement.digest for bundle in there[: len(bundles)]]
    return len(there) > len(bundles) and digests == [bundle.placement.digest for bundle in bundles]
