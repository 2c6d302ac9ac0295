"""Where the tuner's findings are kept, and how they become variants: read without TVM.

A folder for each kernel (group, formats, threads, processor, version of TVM) holds MetaSchedule's own
database of everything that was tried, and `best.json` with the schedule that variants are made of.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from collage_run.files import replacing

from collage_core.backend import Variant
from collage_core.errors import BackendError
from collage_core.folders import user_folder
from collage_core.ir import Subgraph
from collage_core.target import Target, processor

__all__ = [
    "BEST",
    "TUNED",
    "Best",
    "Schedule",
    "folder_of",
    "is_any_kept",
    "read_best",
    "tuned_variant",
    "write_best",
]

TUNED = "tuned"
"""The option of a variant that holds its schedule. It travels with the placement, so that a bundle runs where
nothing was tuned.
"""

_FORM = "1"
"""To be raised when what is kept is no longer understood."""
BEST = "best.json"
"""File that holds the fastest schedule of a kernel."""


_MOST_TEXT_CHARACTERS, _MOST_BYTES = 1 << 16, 1 << 18
"""Schedules that were found took up to 2,000 and 10,000."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What MetaSchedule has done to a workload. workload: structural hash of that function. trace:
    its instructions, as MetaSchedule writes them.
    """

    workload: str
    trace: Any

    def to_text(self) -> str:
        data = json.dumps([self.workload, self.trace], separators=(",", ":"))
        return base64.b64encode(zlib.compress(data.encode(), 9)).decode()

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """BackendError for what `to_text` did not write, or would not: nothing is unpacked beyond a limit."""
        if len(text) > _MOST_TEXT_CHARACTERS:
            raise BackendError(f"the tuned schedule is damaged: it takes {len(text)} characters")
        unpacking = zlib.decompressobj()
        try:
            data = unpacking.decompress(base64.b64decode(text), _MOST_BYTES)
            if not unpacking.eof:
                raise ValueError(f"cut off, or more than {_MOST_BYTES} bytes")
            workload, trace = json.loads(data)
        except (RecursionError, TypeError, ValueError, zlib.error) as error:
            raise BackendError(f"the tuned schedule is damaged: {error}") from None
        return cls(workload, trace)


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest that was found for a kernel: its schedule as text, and what the tuner timed."""

    schedule: str
    run_ms: float


@cache
def _tvm_version() -> str:
    return importlib.metadata.version("apache-tvm")


def folder_of(subgraph: Subgraph, variant: Variant, target: Target) -> Path:
    """The folder of one kernel. Not made here."""
    here = processor()
    facts = [
        _FORM,
        _tvm_version(),
        subgraph.key,
        str(replace(variant, options=())),
        str(target),
        here.model,
        *here.instructions,
    ]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
    return _all_folders() / digest


def is_any_kept() -> bool:
    """Whether anything was ever tuned: else nobody need look for single kernels."""
    return os.path.isdir(_all_folders())  # not `is_dir`: that raises where a folder may not be searched


def _all_folders() -> Path:
    return user_folder() / "tvm" / "tuning"


def read_best(folder: Path) -> Best | None:
    """None where nothing was found yet, or what is there is damaged."""
    try:
        data = json.loads((folder / BEST).read_text())
        return Best(str(data["schedule"]), float(data["run_ms"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_best(folder: Path, best: Best) -> None:
    with replacing(folder / BEST) as partial:
        partial.write_text(json.dumps({"schedule": best.schedule, "run_ms": best.run_ms}))


def tuned_variant(subgraph: Subgraph, variant: Variant, target: Target) -> Variant | None:
    """`variant` by the best schedule that was found for it; None where there is none."""
    best = read_best(folder_of(subgraph, variant, target))
    return None if best is None else replace(variant, options=((TUNED, best.schedule),))
