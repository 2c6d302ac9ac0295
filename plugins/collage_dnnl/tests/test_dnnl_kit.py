"""The kit that says whether a backend is right."""

from __future__ import annotations

import pytest
from collage_conformance import Conformance


@pytest.mark.ci
class TestDnnl(Conformance):
    backend = "dnnl"
    cases = 1
