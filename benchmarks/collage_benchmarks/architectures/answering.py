"""`python -m collage_benchmarks.architectures.answering BUNDLE SAMPLE`: how far a bundle's answers are off.

Printed in JSON, by output: the largest difference from PyTorch's answer, over the largest of that one's
values. It is 1 where that cannot be told, and where whole numbers or booleans differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import numpy as np

from collage_benchmarks.architectures.architecture import ANSWER, GIVEN
from collage_core import Session
from collage_core.costs.check import compare
from collage_core.formats import Array

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    bundle, sample = sys.argv[1:] if arguments is None else arguments
    with np.load(sample) as arrays, Session(bundle) as session:
        given = {n.removeprefix(GIVEN): arrays[n] for n in arrays if n.startswith(GIVEN)}
        answers = {n.removeprefix(ANSWER): arrays[n] for n in arrays if n.startswith(ANSWER)}
        names = [o.name for o in session.get_outputs()]
        found = dict(zip(names, session.run(None, given), strict=True))
        print(json.dumps({name: _off(name, found[name], answer) for name, answer in answers.items()}))
    return 0


def _off(name: str, found: Array, answer: Array) -> float:
    error, refusal = compare(name, found, answer)
    is_wrong = refusal is not None and answer.dtype.kind not in "fc"
    return 1.0 if error is None or is_wrong else error


if __name__ == "__main__":
    sys.exit(main())
