"""The commands of one run, each in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage_benchmarks.evidence.machine import os_version, processor_json
from collage_benchmarks.evidence.records import FORMAT
from collage_benchmarks.evidence.repository import Commit
from collage_core.errors import CollageError

__all__ = ["Runner", "Step", "Tools"]

_PREFIXES = (
    "COLLAGE_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "ONEDNN_",
    "DNNL_",
    "OPENBLAS_",
    "TVM_",
    "ORT_",
    "OV_",
)
"""Of environment variables that change what is measured: all of them are left out, so that defaults hold."""
_KEPT = ("COLLAGE_LOCK",)
_INTERRUPTED = (130, 143, -2, -15)
_ONEDNN_VERSION = "from collage_dnnl.library import load; print(load().version)"
"""Its package is numbered by the year."""
_HOME = "home"
_LAST_LINES = 12
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Tools:
    """The commands that a run starts: Collage's own, and Python with the benchmarks."""

    collage: tuple[str, ...] = (str(Path(sysconfig.get_path("scripts"), "collage")),)
    python: tuple[str, ...] = (sys.executable, "-P")


@dataclass(frozen=True, slots=True)
class Step:
    """A command that has run. out: its standard output; told: its messages, by the line. awaited_s: when the
    file that it was to write first was there.
    """

    name: str
    command: str
    exit_code: int
    seconds: float
    out: str
    told: tuple[str, ...]
    awaited_s: float | None = None

    @property
    def last_line(self) -> str:
        """Of its messages: why it failed, if it has."""
        return self.told[-1] if self.told else f"exit code {self.exit_code}"


class Runner:
    """Runs commands in a folder, with defaults for all that the environment could change. failed: of the step
    that did, None before.
    """

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.folder, self.steps = folder, list[Step]()
        self.failed: dict[str, Any] | None = None
        self._tools = tools
        kept = {k: v for k, v in os.environ.items() if k in _KEPT or not k.startswith(_PREFIXES)}
        # What is told is kept by the line, however long.
        self._environment = {**kept, "COLUMNS": "1000"}

    def costs(self, home: str = _HOME) -> Path:
        """The database of costs."""
        return self.folder / home / "costs.sqlite"

    def run(
        self, name: str, command: Sequence[str], *, home: str = _HOME, awaited: str | None = None
    ) -> Step:
        """A step of the run, whatever its exit code. home: folder of its costs, within the run's. awaited: a
        file whose coming is timed. CollageError where somebody else has interrupted it.
        """
        step = self._run(name, command, home, awaited)
        if step.exit_code in _INTERRUPTED:
            raise CollageError(f"{name} was interrupted; nothing is recorded")
        self.steps.append(step)
        if step.exit_code:
            lines = list(step.told[-_LAST_LINES:])
            self.failed = {"step": name, "exit_code": step.exit_code, "last_lines": lines}
        return step

    def json(self, name: str, command: Sequence[str]) -> Any:
        """What a command prints that is to be known before the run. CollageError if it fails."""
        step = self._run(name, command)
        if step.exit_code:
            raise CollageError(f"{name}: {step.last_line}")
        return json.loads(step.out)

    def facts(self, network: str, commit: Commit, started: str, backends: Any) -> dict[str, Any]:
        """What every record begins with: of what, where, with what and how."""
        return {
            "format": FORMAT,
            "network": network,
            "model_sha256": self.digest(f"{network}.onnx"),
            "processor": processor_json(),
            "commit": {"id": commit.id, "date": commit.date},
            "head": commit.head,
            "dirty": commit.dirty,
            "started": started,
            "commands": [s.command for s in self.steps],
            "software": {
                "python": platform.python_version(),
                "system": os_version(),
                "onednn": self.onednn_version(),
                "backends": backends,
            },
            "seconds": {s.name: round(s.seconds, 1) for s in self.steps},
            "exit_codes": {s.name: s.exit_code for s in self.steps},
            "notes": {s.name: list(s.told) for s in self.steps if s.told},
            "failed": self.failed,
        }

    def onednn_version(self) -> str | None:
        """None where it is not installed."""
        step = self._run("version", [*self._tools.python, "-c", _ONEDNN_VERSION])
        return None if step.exit_code else step.out.strip()

    def digest(self, file: str) -> str | None:
        """SHA-256; None where there is no such file."""
        path = self.folder / file
        if not path.is_file():
            return None
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()

    def _run(self, name: str, command: Sequence[str], home: str = _HOME, awaited: str | None = None) -> Step:
        awaited_s = None
        out, told = (self.folder / f"{name}.{stream}" for stream in ("out", "err"))
        start_s = time.monotonic()
        with out.open("wb") as stdout, told.open("wb") as stderr:
            # In a session of its own: where Ctrl-C reached it, too, it would end its search and go on.
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self._environment, "COLLAGE_HOME": str(self.folder / home)},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                while awaited is not None and awaited_s is None:
                    has_ended = process.poll() is not None
                    if (self.folder / awaited).exists():
                        awaited_s = time.monotonic() - start_s
                    elif has_ended:
                        break
                    else:
                        time.sleep(_LOOK_EVERY_S)
                code = process.wait()
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        seconds = time.monotonic() - start_s
        lines = self._plain(told.read_text(errors="replace")).splitlines()
        said = tuple(filter(None, lines))
        return Step(name, self._shown(command), code, seconds, out.read_text(), said, awaited_s)

    def _shown(self, command: Sequence[str]) -> str:
        """As a person would type it, without this machine's paths."""
        for prefix, word in ((self._tools.collage, "collage"), (self._tools.python, "python")):
            if tuple(command[: len(prefix)]) == prefix:
                return shlex.join([word, *command[len(prefix) :]])
        raise ValueError(f"neither Collage nor Python: {command}")

    def _plain(self, text: str) -> str:
        return text.replace(f"{self.folder}/", "").replace(str(self.folder), ".")
