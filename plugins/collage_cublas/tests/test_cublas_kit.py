"""The kit that says whether a backend is right."""

from __future__ import annotations

import pytest
from collage_conformance import Conformance
from collage_cuda.support import missing


@pytest.mark.ci
@pytest.mark.skipif(missing(["nvmath"]) is not None, reason="there is no GPU, or nothing to reach it with")
class TestCublas(Conformance):
    backend = "cublas"
    cases = 1
