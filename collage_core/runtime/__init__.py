"""Building and running a placement; saving and loading it as a bundle."""

from collage_run.devices import Arena
from collage_run.executable import Context, Executable, Inputs

from collage_core.runtime.build import build
from collage_core.runtime.bundle import Bundle, export, load, read, save

__all__ = ["Arena", "Bundle", "Context", "Executable", "Inputs", "build", "export", "load", "read", "save"]
