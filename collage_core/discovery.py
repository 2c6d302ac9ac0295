"""Whether plugins can be asked at all: the first time that a version is seen, in a process of its own.

What is imported from somebody else's package may crash, end the process or hang. Then nobody is left to say
whose fault it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Any

from collage_core.folders import cache_folder

__all__ = ["LEFT_OUT_VARIABLE", "left_out"]

LEFT_OUT_VARIABLE = "COLLAGE_LEFT_OUT"
"""Environment variable by which a process tells its children whom it has found wanting: JSON, reasons by
name.
"""

_LIMIT_S = float(os.environ.get("COLLAGE_DISCOVERY_LIMIT_S", "20"))
"""For one plugin to say what it brings."""
_ASKED = "variants and priors, too"
"""What plugins are asked: who was not asked this before is not known."""
_HOOKS = (
    *("collage_backends", "collage_devices", "collage_definitions", "collage_peers", "collage_priors"),
    "collage_quantizers",
)


def left_out(points: Sequence[EntryPoint]) -> dict[str, str]:
    """By name, why a plugin cannot be asked in this process.

    Those that could be asked before are not asked again: by package, version, interpreter and core's version.
    A plugin that raises an ordinary exception can be asked: whoever does so hears it.
    """
    if (told := os.environ.get(LEFT_OUT_VARIABLE)) is not None:
        return _reasons(told)
    unseen = [p for p in points if not _is_seen(p)]
    found: dict[str, str] = {}
    are_remembered = True
    while unseen and sys.executable:
        asked, reason = _ask(unseen[0].group, [p.name for p in unseen])
        for point in unseen[:asked]:
            are_remembered &= _remember(point)
        if reason is None:
            break
        found[unseen[asked].name] = reason
        unseen = unseen[asked + 1 :]
    if found or not are_remembered:
        os.environ[LEFT_OUT_VARIABLE] = json.dumps(found)
    return found


def _reasons(told: str) -> dict[str, str]:
    with suppress(ValueError, AttributeError):
        return {str(name): str(reason) for name, reason in json.loads(told).items()}
    return {}


def _mark(point: EntryPoint) -> Path:
    """A file that is there where it could be asked. RuntimeError where nobody's home is known."""
    package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    here = platform.python_version(), sys.prefix, version("collage-core")
    facts = [point.name, point.value, package, *here, _ASKED]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
    return cache_folder() / "discovered" / digest


def _is_seen(point: EntryPoint) -> bool:
    with suppress(OSError, RuntimeError):
        return _mark(point).exists()
    return False


def _remember(point: EntryPoint) -> bool:
    """Whether that is possible: it is asked again otherwise."""
    try:
        path = _mark(point)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except (OSError, RuntimeError):
        return False
    return True


def _ask(group: str, names: Sequence[str]) -> tuple[int, str | None]:
    """How many of them said what they bring, and what was wrong with the next one; None if there is none."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as told:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "collage_core.discovery", group, str(theirs), *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs],
                start_new_session=True,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except OSError:
            os.close(theirs)
            return len(names), None  # whoever asks them here will see
        os.close(theirs)
        try:
            is_over = _wait(process, _LIMIT_S * len(names))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        lines = told.read().splitlines()
    if is_over and not process.returncode and len(lines) == len(names):
        return len(names), None
    reason = next((line.partition(" ")[2] for line in lines if line.startswith("raised ")), None)
    asked = len([line for line in lines if line == "asked"])
    if asked == len(names):  # what it does when the process ends is no matter here
        return asked, None
    if reason is None:
        reason = _cause(process.returncode) if is_over else f"gives no answer within {_LIMIT_S:g} s"
    return asked, f"asked what it brings, it {reason}"


def _wait(process: subprocess.Popen[str], limit_s: float) -> bool:
    try:
        process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _cause(code: int) -> str:
    if code >= 0:
        return f"ends the process (status {code})"
    return f"crashes ({signal.Signals(-code).name})"


def _ask_thing(thing: Any) -> None:
    """Whatever core asks it in the user's process."""
    info = getattr(thing, "info", lambda: None)()
    for ask in ("patterns", "rules"):
        getattr(thing, ask, list)()
    if hasattr(thing, "variants") and getattr(info, "available", False):
        from collage_core.probing import ask_variants  # with the IR, which it has loaded

        ask_variants(thing)


def _main(group: str, told_fd: int, names: Sequence[str]) -> None:
    """Ask each plugin what it brings; a line for each that could be asked."""
    points = {p.name: p for p in entry_points(group=group)}
    for name in names:
        try:
            with suppress(Exception, SystemExit):  # whoever asks it hears it
                plugin = points[name].load()
                things = [thing for hook in _HOOKS for thing in getattr(plugin, hook, list)() or ()]
                for thing in things:
                    with suppress(Exception, SystemExit):
                        _ask_thing(thing)
        except BaseException as error:
            os.write(told_fd, f"raised raises {type(error).__name__}\n".encode())
            os._exit(1)
        os.write(told_fd, b"asked\n")
    os._exit(0)  # what it does when the process ends is no matter here


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
