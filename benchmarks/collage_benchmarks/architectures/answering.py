"""`python -m collage_benchmarks.architectures.answering BUNDLE SAMPLE`: how far a bundle's answers are off.

Printed in JSON, by output: the largest difference from PyTorch's answer, over the largest of that one's
values; 1 where shapes differ. Whole numbers and booleans are off by the share of those that differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import numpy as np

from collage_benchmarks.architectures.architecture import ANSWER, GIVEN
from collage_core import Session
from collage_core.formats import Array

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    bundle, sample = sys.argv[1:] if arguments is None else arguments
    with np.load(sample) as arrays, Session(bundle) as session:
        given = {n.removeprefix(GIVEN): arrays[n] for n in arrays if n.startswith(GIVEN)}
        answers = {n.removeprefix(ANSWER): arrays[n] for n in arrays if n.startswith(ANSWER)}
        names = [o.name for o in session.get_outputs()]
        found = dict(zip(names, session.run(None, given), strict=True))
        print(json.dumps({name: _off(found[name], answer) for name, answer in answers.items()}))
    return 0


def _off(found: Array, answer: Array) -> float:
    if found.shape != answer.shape or found.dtype != answer.dtype:
        return 1.0
    if answer.dtype.kind not in "fc":
        return float(np.mean(found != answer)) if answer.size else 0.0
    known = np.isfinite(answer)
    if not np.isfinite(found[known]).all() or not _same(found[~known], answer[~known]):
        return 1.0
    scale = float(np.max(np.abs(answer[known]), initial=0.0)) or 1.0
    return float(np.max(np.abs(found[known].astype(np.float64) - answer[known]), initial=0.0)) / scale


def _same(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one, other, equal_nan=True))


if __name__ == "__main__":
    sys.exit(main())
