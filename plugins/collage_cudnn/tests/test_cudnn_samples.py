"""ONNX's own cases, random models and odd sizes: everything that is planned for them, reckoned by NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from collage_conformance.groups import groups_of
from collage_conformance.samples import Sample, chains, samples_of
from collage_conformance.subject import Subject
from collage_cudnn.backend import CudnnBackend
from collage_cudnn.planning.planner import plan
from collage_cudnn.support import SUPPORTED_OPS
from cudnn_checks import ROUNDING, check

from collage_core.errors import Refusal
from collage_core.ir import Subgraph
from collage_core.target import Target

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore")]

_RARE = frozenset(["BatchNormalization", "Pow"])
"""Their cases have parameters that are computed."""


class _Unasked(CudnnBackend):
    """Whatever the library would say."""

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        return [None] * len(subgraphs)


def _checked(samples: Iterable[Sample]) -> int:
    subject = Subject(_Unasked(), ROUNDING, None)
    count = 0
    for sample in samples:
        for group in groups_of(subject, sample):
            offered = subject.backend.variants(group.subgraph, ROUNDING)
            assert not isinstance(offered, Refusal)
            for variant in offered:
                for asked in plan(group.subgraph, variant):
                    with np.errstate(all="ignore"):
                        check(group.subgraph, variant, asked, group.inputs)
                    count += 1
    return count


@pytest.mark.parametrize("operator", sorted(SUPPORTED_OPS - _RARE))
def test_operator(operator: str) -> None:
    assert _checked(samples_of(operator, 4))


def test_chains() -> None:
    assert _checked(map(chains, range(20))) > 50
