"""What the tests of this plugin share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from collage_cublas.backend import CublasBackend

sys.path.append(str(Path(__file__).parent / "support"))

from cublas_emulation import Emulation, emulate


@pytest.fixture
def backend() -> CublasBackend:
    return CublasBackend()


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> Emulation:
    return emulate(monkeypatch)
