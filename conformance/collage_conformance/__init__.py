"""Says whether a backend is right. From the command line::

    pytest --pyargs collage_conformance --collage-backend=negate

or as a part of a plugin's own tests::

    from collage_conformance import Conformance

    class TestNegate(Conformance):
        backend = "negate"
"""

from collage_conformance.kit import Conformance
from collage_conformance.samples import Sample

__all__ = ["Conformance", "Sample", "__version__"]

__version__ = "0.1.0"
