"""The kit that says whether a backend is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from collage_conformance import Conformance
from collage_conformance.subject import Subject


@pytest.mark.slow
class TestTvm(Conformance):
    backend = "tvm"
    cases = 1

    @pytest.mark.xfail(strict=True, reason="TVM has a handler of its own for segmentation faults")
    def test_manners(self, subject: Subject, tmp_path: Path) -> None:
        super().test_manners(subject, tmp_path)
