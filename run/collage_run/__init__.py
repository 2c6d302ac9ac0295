"""What runs exported bundles: kernels that were compiled and packed before, over one arena, and nothing else.

`collage-core` builds on it. By itself it needs NumPy alone.
"""

from collage_run.errors import BackendError, BundleError, CollageError, InputError, OtherTargetError
from collage_run.executable import Context, Executable, Inputs
from collage_run.exported import load

__all__ = [
    "BackendError",
    "BundleError",
    "CollageError",
    "Context",
    "Executable",
    "InputError",
    "Inputs",
    "OtherTargetError",
    "load",
]
