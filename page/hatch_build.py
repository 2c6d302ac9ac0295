"""Puts the drawing library that package-lock.json pins into the package; npm checks its digest."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_LIBRARY = Path("node_modules", "cytoscape", "dist", "cytoscape.min.js")


class BundleLibrary(BuildHookInterface[Any]):
    """What was bundled stays beside the sources, with the lockfile that it came by: nothing is fetched twice,
    and a source distribution, which holds both, builds without npm.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        lock = root / "package-lock.json"
        library, came_by = (
            root / "collage_page" / name for name in ("cytoscape.min.js", "cytoscape.lock.json")
        )
        if library.exists() and came_by.exists() and came_by.read_bytes() == lock.read_bytes():
            return
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit(
                "collage-page is built with npm, which is not installed: Debian's package is `npm`. "
                "Its wheels need none."
            )
        with tempfile.TemporaryDirectory() as folder:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(root / name, folder)
            told = subprocess.run(
                [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                cwd=folder,
                capture_output=True,
                text=True,
            )
            if told.returncode:
                raise SystemExit(f"npm could not bring the drawing library: {told.stderr.strip()}")
            shutil.copy(Path(folder, _LIBRARY), library)
        shutil.copy(lock, came_by)
