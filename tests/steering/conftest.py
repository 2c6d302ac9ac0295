"""What tests of steering share: the backends that are steered."""

from __future__ import annotations

import pytest
import steered_backends

from collage_core.plugins import Registry


@pytest.fixture
def registry() -> Registry:
    """Of `steered_backends` alone."""
    return Registry([steered_backends], entry_points=False)
