"""Normalising passes, by name, in the order in which they run."""

from collections.abc import Collection

from collage_core.errors import CollageError
from collage_core.ir.graph import Graph
from collage_core.ir.passes.base import Pass, PassFault, run_passes
from collage_core.ir.passes.cleaning import DEAD_CODE, DROP_IDENTITIES
from collage_core.ir.passes.constants import FOLD_CONSTANTS
from collage_core.ir.passes.dequantising import DEQUANTISE_FOR_EACH
from collage_core.ir.passes.gathering import GATHER_REGIONS
from collage_core.ir.passes.inline_if import INLINE_CONSTANT_IF
from collage_core.ir.passes.opset import UPGRADE_OPSET
from collage_core.ir.passes.qlinear import STATE_QLINEAR
from collage_core.ir.passes.recompose import RECOMPOSE_GELU
from collage_core.ir.passes.requantising import MOVE_QUANTISED
from collage_core.ir.passes.scale_shift import FOLD_SCALE_SHIFT
from collage_core.ir.passes.seeding import SEED_RANDOM

__all__ = ["PASSES", "Pass", "PassFault", "normalise", "passes_without", "run_passes"]

PASSES: tuple[Pass, ...] = (
    DEAD_CODE,
    INLINE_CONSTANT_IF,
    UPGRADE_OPSET,
    SEED_RANDOM,
    STATE_QLINEAR,
    FOLD_CONSTANTS,
    DROP_IDENTITIES,
    FOLD_SCALE_SHIFT,
    RECOMPOSE_GELU,
    MOVE_QUANTISED,
    DEQUANTISE_FOR_EACH,
    DEAD_CODE,
    GATHER_REGIONS,
)
"""What `normalise` runs. Dead code goes first and, with what the others leave, last. Branches are chosen
early: what stands in one is then a part of the graph like any other. Shapes that are open behind all others
stay so: regions are gathered at the end.
"""


def passes_without(skip: Collection[str] = ()) -> tuple[Pass, ...]:
    """All passes except those named in `skip`; CollageError if a name is unknown."""
    known = {p.name for p in PASSES}
    for name in skip:
        if name not in known:
            raise CollageError(f"unknown pass {name!r}; known: {', '.join(sorted(known))}")
    return tuple(p for p in PASSES if p.name not in skip)


def normalise(graph: Graph, skip: Collection[str] = ()) -> Graph:
    """Run all passes except those named in `skip`; CollageError if a name is unknown."""
    return run_passes(graph, passes_without(skip))
