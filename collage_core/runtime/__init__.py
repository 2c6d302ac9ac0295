"""Building and running a placement; saving and loading it as a bundle."""

from collage_core.devices.cpu import Arena
from collage_core.runtime.build import build
from collage_core.runtime.bundle import Bundle, load, read, save
from collage_core.runtime.executable import Context, Executable, Inputs

__all__ = ["Arena", "Bundle", "Context", "Executable", "Inputs", "build", "load", "read", "save"]
