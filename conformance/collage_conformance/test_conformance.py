"""The checks of the backend that --collage-backend names."""

from collage_conformance.kit import Conformance

__all__ = ["TestConformance"]


class TestConformance(Conformance):
    pass
