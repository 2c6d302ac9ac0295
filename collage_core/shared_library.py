"""Where a vendor's shared library lies, and whether its package is here (`collage_run.shared_library`)."""

from collage_run.shared_library import SharedLibrary, installed_version, once

__all__ = ["SharedLibrary", "installed_version", "once"]
