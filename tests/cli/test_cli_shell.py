"""What a shell does to the command: outputs that take nothing, and interrupts that come at once or never."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collage_core.costs import CostDatabase

if TYPE_CHECKING:
    from collage_command import Collage


@pytest.mark.parametrize(
    "arguments", [["backends"], ["--help"], ["--version"], ["costs", "export"], ["optimize", "--help"]]
)
@pytest.mark.parametrize("output", ["closed", "gone", "full"])
def test_an_output_that_takes_nothing(arguments: list[str], output: str, collage: Collage) -> None:
    with CostDatabase(collage.home / "costs.sqlite"):
        pass
    command = [
        "bash",
        "-c",
        f"{Path(sys.executable).parent}/collage {' '.join(arguments)}"
        + {
            "closed": " >&-",
            "full": " >/dev/full",
            "gone": " | true; exit ${PIPESTATUS[0]}",
        }[output],
    ]
    variables = {k: v for k, v in collage.environment.items() if k != "PYTHONUNBUFFERED"}
    result = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60)
    assert result.returncode in (0, 1)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
    assert len(result.stderr.splitlines()) <= 1


def test_where_errors_would_be_told_may_be_closed(collage: Collage) -> None:
    """As a daemon's is. Its answer is no less of one."""
    command = f"{Path(sys.executable).parent}/collage backends 2>&-"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=collage.environment, timeout=60
    )
    assert result.returncode == 0
    assert "reference" in result.stdout


@pytest.mark.alone
def test_interrupted_at_once(collage: Collage) -> None:
    """Ctrl-C while Python imports what the command needs, at twelve moments of it."""
    python_s = 0.0
    for _ in range(5):  # the slowest: some starts take several times as long as others
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        python_s = max(python_s, 2 * (time.monotonic() - start))
    start = time.monotonic()
    collage.run("--version")
    whole_s = time.monotonic() - start
    before = 0
    for i in range(12):
        process = collage.start("backends")
        # Before the interpreter is up, nobody's program has begun.
        time.sleep(python_s + i / 12 * max(0.0, whole_s - python_s))
        number = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[i % 3]
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=30)
        assert "collage_c" not in err, (i, err)  # a slow interpreter may have been interrupted itself
        assert process.returncode in (0, 128 + number, -number), (i, out, err)
        before += "collage: interrupted before anything had begun" in err
        if process.returncode == 130:
            assert "collage: interrupted" in err, (i, err)
    assert before > 0, "most of the time goes into imports"


def test_interrupts_that_are_ignored_stay_ignored(collage: Collage) -> None:
    """As for what a script starts in the background, or `nohup` does."""
    code = "import signal; import collage_cli, sys; sys.argv[1:] = ['--version']\n"
    both = "[signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGHUP)]"
    check = f"import atexit; atexit.register(lambda: print({both}))\n"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}{check}collage_cli.main()"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGHUP)],
    )
    assert result.stdout.splitlines()[-1] == "[True, True]", result.stderr
