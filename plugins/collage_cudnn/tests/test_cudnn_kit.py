"""The kit that says whether a backend is right."""

from __future__ import annotations

import pytest
from collage_conformance import Conformance
from collage_cudnn.presence import missing_reason


@pytest.mark.ci
@pytest.mark.skipif(missing_reason() is not None, reason="there is no GPU, or nothing to reach it with")
class TestCudnn(Conformance):
    backend = "cudnn"
    cases = 1
