"""The installed `collage` command, run as a person runs it: in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sysconfig
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BRIEFLY = ("--threads", "1", "--rounds", "4", "--backends", "dnnl,tvm")
"""Options of `collage optimize` for what has to be placed and need not take long: one library that is called
and one that compiles. All that are installed take part in tests/cli/test_cli_defaults.py.
"""

NO_COSTS = ("original", "priors", "found")
"""Kinds of what a database keeps beside costs. Whoever goes on after an interruption writes it anew."""

INTERRUPTED_MODEL = """<ir_version: 10, opset_import: ["" : 20]> g (float[1,8,16,16] x) => (float y) {
    [pool] p = MaxPool<kernel_shape=[3,3]>(x)
    [turn] t = Transpose<perm=[0,3,2,1]>(p)
    [exp] e = Exp(t)
    [neg] n = Neg(e)
    [soft] y = Softmax(n)
}"""
"""For tests of interrupts: a few operators, whose kernels take some seconds to measure."""

_COLLAGE = Path(sysconfig.get_path("scripts"), "collage")


def _hear_interrupts() -> None:
    """Whoever runs the tests in the background has SIGINT ignored, and a child would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Collage:
    """The installed command, with a folder of its own for costs and temporary files, and further environment
    variables.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

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
        variables = {
            **os.environ,
            "COLLAGE_HOME": str(self.home),
            "COLLAGE_LOCK": str(self.folder / "lock"),  # not to wait for what others measure on this machine
            "COLLAGE_SETTINGS": "off",
            "TMPDIR": str(self.temporary),
        }
        variables.pop("COLLAGE_PLUGINS", None)
        return {**variables, **self.variables}

    def stored(self) -> dict[str, float]:
        """When each cost in the database was measured, by kind and key; read beside whoever is writing."""
        path = self.home / "costs.sqlite"
        if not path.exists():
            return {}
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.OperationalError):
            kind = "json_extract(key, '$.kind')"
            others = ", ".join("?" * len(NO_COSTS))
            costs = f"SELECT {kind} || ' ' || digest, created_at FROM costs WHERE {kind} NOT IN ({others})"
            return dict(connection.execute(costs, NO_COSTS).fetchall())
        return {}  # it is just being made

    def start(self, *arguments: str | Path, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(_COLLAGE), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=self.folder,
            env=self.environment,
            preexec_fn=_hear_interrupts,
        )
        self.started.append(process)
        return process

    def end_all(self) -> None:
        """Kill what a failed test has left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, *arguments: str | Path, code: int = 0) -> str:
        """Standard output; the exit code must be `code`."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=600)
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
