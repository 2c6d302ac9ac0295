"""A backend that NumPy plays, and a registry of it alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from numpy_backend import NumpyBackend

from collage_core.backend import Backend
from collage_core.plugins import Registry


@pytest.fixture
def backend() -> NumpyBackend:
    """The one that `registry` has; it remembers what it has built."""
    return NumpyBackend()


@pytest.fixture
def registry(backend: NumpyBackend) -> Registry:
    """Knows `backend`, and of what is installed nothing."""

    class Plugin:
        @staticmethod
        def collage_backends() -> Sequence[Backend]:
            return [backend]

    from collage_core.plugins import hookimpl

    Plugin.collage_backends = staticmethod(hookimpl(Plugin.collage_backends))  # type: ignore[method-assign]
    return Registry([Plugin], entry_points=False)
