"""Which TensorRT is here: told from files and package metadata alone.

There are two, with one API. TensorRT times its kernels on the GPU that it builds for. TensorRT for RTX builds
without a GPU, for named compute capabilities, and compiles on the GPU when an engine is opened.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from collage_cuda.facts import facts
from collage_cuda.support import missing

from collage_core.shared_library import installed_version

__all__ = ["EDITIONS", "Edition", "chosen", "chosen_here", "missing_reason"]

_PACKAGE = "collage-tensorrt"


@dataclass(frozen=True, slots=True)
class Edition:
    """module: of its bindings. distributions: of which one is installed with it. capabilities: compute
    capabilities that it builds for, "8.9" as the driver says it; all where None.
    """

    title: str
    module: str
    distributions: tuple[str, ...]
    capabilities: tuple[str, ...] | None = None

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str | None:
        return next(filter(None, map(installed_version, self.distributions)), None)

    def builds_for(self, capability: str) -> bool:
        return self.capabilities is None or capability in self.capabilities


EDITIONS = (
    Edition("TensorRT", "tensorrt", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")),
    Edition(
        "TensorRT for RTX",
        "tensorrt_rtx_bindings",
        ("tensorrt_rtx_cu13_bindings", "tensorrt_rtx_cu12_bindings"),
        # https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/cpu-engines.html
        ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1"),
    ),
)
"""The one that times on the GPU first."""


def chosen(capability: str | None = None) -> Edition | None:
    """The first that is installed and builds for that compute capability; for any where None."""
    return next(
        (e for e in EDITIONS if e.is_installed and (not capability or e.builds_for(capability))), None
    )


def chosen_here() -> Edition | None:
    """For the GPU that is here, where one is."""
    return chosen(None if missing([], _PACKAGE) else facts()["compute_capability"])


def missing_reason() -> str | None:
    """Why nothing can run here; None if it can."""
    installed = [e for e in EDITIONS if e.is_installed]
    # Where none is, what `collage-tensorrt[gpu]` brings is named.
    if (reason := missing([e.module for e in installed[:1] or EDITIONS[1:]], _PACKAGE)) is not None:
        return reason
    capability = facts()["compute_capability"]
    if chosen(capability) is not None:
        return None
    return f"{installed[0].title} does not build for compute capability {capability}"
