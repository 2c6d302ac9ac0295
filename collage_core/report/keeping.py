"""What an optimisation has found, kept as a bundle with its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage_core.errors import CollageError
from collage_core.ir.digests import graph_digest
from collage_core.pipeline.profiles import ProfileFound
from collage_core.report.summary import optimization_json
from collage_core.runtime.bundle import Bundle, holds, read_profiles, save

__all__ = ["is_kept", "keep"]

_OF_ONE_CALL = ("is_cut_short", "original", "search")
"""Parts of a report that say what a call had to do for its answer."""


def keep(
    found: Sequence[ProfileFound], model: str, path: str | Path | None, *, is_all: bool = True
) -> list[dict[str, Any]]:
    """Save what was found, where a file is named, and return the reports. What was found before, and is
    there, stays as it is: with when and how long it was measured. BundleError as from `save`.

    is_all: else more profiles are to come; a file that holds them, too, stays as well.
    """
    bundles = [_bundle(one, model) for one in found]
    if path is not None and not _stays(path, found, bundles, is_all):
        save(bundles if len(bundles) > 1 else bundles[0], path)
    return [dict(bundle.report) for bundle in bundles]


def is_kept(found: Sequence[ProfileFound], model: str, path: str | Path) -> bool:
    """Whether a file has all that was found, and `keep` would leave it as it is."""
    return _stays(path, found, [_bundle(one, model) for one in found], is_all=True)


def _stays(path: str | Path, found: Sequence[ProfileFound], bundles: Sequence[Bundle], is_all: bool) -> bool:
    return all(one.optimization.is_recalled for one in found) and _has(path, bundles, is_all)


def _bundle(found: ProfileFound, model: str) -> Bundle:
    one = found.optimization
    report = optimization_json(one, model)
    return Bundle(one.graph, one.placement, report, singles=one.rivals, rows=found.rows, serving=one.serving)


def _has(path: str | Path, bundles: Sequence[Bundle], is_all: bool) -> bool:
    """Whether they are there already; if these are not all, be it with further ones behind them."""
    if holds(path, bundles if len(bundles) > 1 else bundles[0], whatever=_OF_ONE_CALL):
        return True
    if is_all:
        return False
    try:
        there = read_profiles(path)
    except CollageError:
        return False
    return len(there) > len(bundles) and all(map(_is_same, there, bundles))


def _is_same(one: Bundle, other: Bundle) -> bool:
    if (one.placement.digest, one.rows, one.serving) != (other.placement.digest, other.rows, other.serving):
        return False
    return graph_digest(one.graph) == graph_digest(other.graph)
