"""The installed `collage` command, run as a person runs it: in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COLLAGE = Path(sysconfig.get_path("scripts"), "collage")


@dataclass(frozen=True)
class Collage:
    """The installed command, with a folder of its own for costs and temporary files."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def temporary(self) -> Path:
        path = self.folder / "tmp"
        path.mkdir(exist_ok=True)
        return path

    @property
    def environment(self) -> Mapping[str, str]:
        variables = {**os.environ, "COLLAGE_HOME": str(self.home), "TMPDIR": str(self.temporary)}
        variables.pop("COLLAGE_PLUGINS", None)
        return variables

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(_COLLAGE), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )

    def run(self, *arguments: str | Path, code: int = 0) -> str:
        """Standard output; the exit code must be `code`."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        return out

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@dataclass(frozen=True)
class Optimised:
    """A model file, what two runs of `collage optimize --json` said, and the bundle of the second."""

    collage: Collage
    model: Path
    first: dict[str, Any]
    second: dict[str, Any]
    bundle: Path
