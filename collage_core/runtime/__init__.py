"""Building and running a placement; saving and loading it as a bundle."""

from collage_run.devices import Arena
from collage_run.executable import Context, Executable, Inputs

from collage_core.runtime.build import build
from collage_core.runtime.bundle import Bundle, export, read, read_profiles, save
from collage_core.runtime.loading import Loaded, backends_of, load, load_profiles

__all__ = [
    "Arena",
    "Bundle",
    "Context",
    "Executable",
    "Inputs",
    "Loaded",
    "backends_of",
    "build",
    "export",
    "load",
    "load_profiles",
    "read",
    "read_profiles",
    "save",
]
