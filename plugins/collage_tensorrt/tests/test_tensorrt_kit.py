"""The kit that says whether a backend is right."""

from __future__ import annotations

import pytest
from collage_conformance import Conformance
from collage_tensorrt.editions import missing_reason


@pytest.mark.ci
@pytest.mark.skipif(missing_reason() is not None, reason="there is no GPU, or nothing to reach it with")
class TestTensorrt(Conformance):
    backend = "tensorrt"
    cases = 1
