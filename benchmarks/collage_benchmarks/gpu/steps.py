"""Steps, each a process of its own with a limit, whose answers are kept: a second run goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Step", "run_steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """command: what is run. limit_s: seconds after which it is ended."""

    name: str
    command: tuple[str, ...]
    limit_s: float


def run_steps(steps: Sequence[Step], folder: Path, budget_s: float) -> int:
    """One after the other; how many have failed. In `folder`: NAME.out, NAME.err, and NAME.json with the
    command, its exit code and its seconds. What has ended well there is not run again. None is begun that has
    less than a quarter of its limit left of the budget; its limit is what is left then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begun_s, failed = time.monotonic(), 0
    for step in steps:
        if _is_done(folder, step):
            print(f"{step.name}: done before", flush=True)
            continue
        left_s = budget_s - (time.monotonic() - begun_s)
        if left_s < step.limit_s / 4:
            print(f"{step.name}: not begun, {left_s:.0f} s are left", flush=True)
            continue
        told = _run(step, folder, min(step.limit_s, left_s))
        failed += told["exit_code"] != 0
        print(f"{step.name}: exit code {told['exit_code']} after {told['seconds']:.0f} s", flush=True)
    return failed


def _is_done(folder: Path, step: Step) -> bool:
    try:
        told = json.loads((folder / f"{step.name}.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("exit_code") == 0


def _run(step: Step, folder: Path, limit_s: float) -> dict[str, Any]:
    begun_s = time.monotonic()
    with (folder / f"{step.name}.out").open("w") as out, (folder / f"{step.name}.err").open("w") as err:
        process = subprocess.Popen(step.command, stdout=out, stderr=err, start_new_session=True)
        try:
            code = process.wait(limit_s)
        except BaseException as error:  # its limit, or somebody's Ctrl-C
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            code = -signal.SIGKILL
    told = {"command": [*step.command], "exit_code": code, "seconds": round(time.monotonic() - begun_s, 1)}
    (folder / f"{step.name}.json").write_text(json.dumps(told, indent=1))
    return told


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started; what it has saved by then stays. First it is asked."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        os.killpg(process.pid, signal.SIGKILL)  # of its children, whoever did not listen
    process.wait()
