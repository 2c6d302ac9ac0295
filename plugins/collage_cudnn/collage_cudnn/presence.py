"""Whether cuDNN can be used here, told from files and package metadata alone."""

from __future__ import annotations

import os

from collage_cuda.support import missing

from collage_core.shared_library import installed_version

__all__ = ["DESCRIPTION_VARIABLE", "described_device", "library_version", "missing_reason"]

DESCRIPTION_VARIABLE = "COLLAGE_CUDNN_DESCRIPTION"
"""A JSON file that describes a GPU, as `cudnn.create_device_properties(0).serialize()` returns it: about that
one the library is asked.
"""

_MODULES = ("cudnn", "nvidia.cudnn")
_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def library_version() -> str | None:
    return next(filter(None, map(installed_version, _PACKAGES)), None)


def described_device() -> str | None:
    """The file that describes the GPU; None where the one that is here is asked."""
    path = os.environ.get(DESCRIPTION_VARIABLE) or None
    return path if missing_reason() is not None else None


def missing_reason() -> str | None:
    """Why nothing can run here; None if it can."""
    return missing(list(_MODULES), "collage-cudnn")
