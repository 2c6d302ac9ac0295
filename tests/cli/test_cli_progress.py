"""Progress on a terminal, in a log file and in a notebook."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from collage_core.cli.progress import _WORDS, ProgressBars

_CORE = Path(__file__).parents[2] / "collage_core"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_SHOW, _HIDE = "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JPY_PARENT_PID", "FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def _terminal(width: int = 100) -> tuple[Terminal, Console]:
    file = Terminal()
    return file, Console(file=file, width=width, color_system=None)


def _tell(progress: ProgressBars, clock: Clock) -> None:
    """A run as the pipeline tells it; at 1000 s it starts, at 1027 s it is over."""
    progress.limit(180.0)
    progress.phase("reading the model")
    clock.now_s += 1.0
    progress.phase("measuring kernels", 12)
    for _ in range(8):
        clock.now_s += 3.0
        progress.step("swift")
    progress.best("swift", 13.125, "swift", 13.125)
    progress.best("swift", 13.125, "swift", 13.125)
    progress.note("this machine is busy")
    clock.now_s += 2.0
    progress.best("mix", 12.5, "swift", 13.125)


def test_a_log_has_lines_with_their_seconds() -> None:
    file, clock = io.StringIO(), Clock()
    with ProgressBars(Console(file=file, width=20), clock) as progress:
        _tell(progress, clock)
        progress.phase("choosing", 2)
    assert file.getvalue().splitlines() == [
        "    0.0 s  at most 0:03:00 left in all",
        "    0.0 s  reading the model",
        "    1.0 s  measuring kernels: 0 of 12, at most 0:02:59 left in all",
        "   13.0 s  measuring kernels: 4 of 12, swift, 0:00:24 left, at most 0:02:47 left in all",
        "   25.0 s  measuring kernels: 8 of 12, swift, 0:00:12 left, at most 0:02:35 left in all",
        "   25.0 s  best so far: swift alone 13.1 ms",
        "   25.0 s  this machine is busy",
        "   27.0 s  best so far: mix 12.5 ms; swift alone 13.1 ms (1.05 times)",
        "   27.0 s  comparing placements and single libraries to choose: 0 of 2, at most 0:02:33 left in all",
    ]


def test_a_phase_that_begins_again_at_once_is_told_once() -> None:
    file, clock = io.StringIO(), Clock()
    with ProgressBars(Console(file=file), clock) as progress:
        for _ in range(5):
            progress.phase("measuring kernels", 1)
            clock.now_s += 4.0
            progress.step()
    told = [line.split()[0] for line in file.getvalue().splitlines()]
    assert told == ["0.0", "12.0"], file.getvalue()


def test_a_phase_of_unknown_length_and_one_that_goes_on() -> None:
    file, clock = io.StringIO(), Clock()
    with ProgressBars(Console(file=file), clock) as progress:
        progress.step("of nothing")
        progress.limit(None)
        progress.phase("searching")
        clock.now_s += 10.0
        progress.step("best 3 ms")
        progress.phase("confirming", 1)
        for _ in range(2):
            clock.now_s += 10.0
            progress.step()
        progress.best("mix", 123.456, None, None)
    assert file.getvalue().splitlines() == [
        "    0.0 s  searching",
        "   10.0 s  searching: 1 done, best 3 ms",
        "   10.0 s  comparing once more to confirm: 0 of 1",
        "   20.0 s  comparing once more to confirm: 1 of 1",
        "   30.0 s  comparing once more to confirm: 2 done",
        "   30.0 s  best so far: mix 123 ms",
    ]


def test_a_terminal_shows_all_in_one_area_and_keeps_notes() -> None:
    (file, console), clock = _terminal(), Clock()
    with ProgressBars(console, clock) as progress:
        _tell(progress, clock)
    shown = _CONTROL.sub("", file.getvalue())
    # What is drawn last, before it is taken away.
    *_, bar, left, best, _ = (line.strip() for line in shown.splitlines())
    assert re.search(r"measuring kernels 8 of 12 0:00:12 left .* swift$", bar)
    assert left == "at most 0:02:33 left in all"
    assert best == "best so far: mix 12.5 ms; swift alone 13.1 ms (1.05 times)"
    assert "this machine is busy\n" in shown
    assert shown.count("reading the model") <= 2, "a phase that is over is not drawn"


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_has_no_more_lines(width: int) -> None:
    (file, console), clock = _terminal(width), Clock()
    with ProgressBars(console, clock) as progress:
        _tell(progress, clock)
    *_, bar, left, best, _ = _CONTROL.sub("", file.getvalue()).splitlines()
    assert "mea" in bar
    assert left.startswith("at most 0:02:33")
    assert best.startswith("best so far:")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interruption_leaves_the_terminal_clean(error: BaseException) -> None:
    (file, console), clock = _terminal(), Clock()
    before = (sys.stdout, sys.stderr)

    def interrupted() -> None:
        with ProgressBars(console, clock) as progress:
            _tell(progress, clock)
            raise error

    with pytest.raises(type(error)):
        interrupted()
    assert (sys.stdout, sys.stderr) == before
    written = file.getvalue()
    assert written.count(_SHOW) == written.count(_HIDE) == 1
    gone = "\x1b[1A\x1b[2K"
    assert written.endswith(gone * 3), "its three lines"
    assert not _CONTROL.sub("", written.rpartition(_SHOW)[2]).strip()


def test_an_interruption_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    file, console = _terminal()
    bars = ProgressBars(console)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bars._live, "refresh", interrupted)
    before = sys.stdout
    with pytest.raises(KeyboardInterrupt):
        bars.__enter__()
    assert sys.stdout is before
    assert file.getvalue().endswith(_SHOW)


@pytest.mark.parametrize("shell", [False, True])
def test_a_notebook_gets_lines(shell: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the kernel, and what it runs with `!` on a terminal of its own."""
    file, clock = Terminal(), Clock()
    if shell:
        monkeypatch.setenv("JPY_PARENT_PID", "1")
    with ProgressBars(Console(file=file, force_jupyter=not shell), clock) as progress:
        _tell(progress, clock)
    lines = file.getvalue().splitlines()
    assert "   25.0 s  this machine is busy" in lines
    assert lines[-1] == "   27.0 s  best so far: mix 12.5 ms; swift alone 13.1 ms (1.05 times)"
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize(("variable", "value"), [("FORCE_COLOR", "1"), ("TERM", "dumb")])
def test_a_log_is_a_log_whatever_is_said_of_it(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    file = Terminal() if variable == "TERM" else io.StringIO()
    with ProgressBars(Console(file=file)) as progress:
        progress.phase("measuring kernels", 12)
    assert "\x1b" not in file.getvalue()
    assert file.getvalue().endswith(" s  measuring kernels: 0 of 12\n")


@pytest.mark.parametrize("on_terminal", [False, True])
def test_names_can_send_nothing_to_the_terminal(on_terminal: bool) -> None:
    file = Terminal() if on_terminal else io.StringIO()
    console = Console(file=file, width=400, color_system=None)
    name = "[bold]:smile: \x1b]0;title\x07\r\nnext"
    shown = "[bold]:smile: \\x1b]0;title\\x07\\r\\nnext"
    with ProgressBars(console, Clock()) as progress:
        progress.note(f"note {name}")
        progress.phase(f"tuning {name}", 3)
        progress.step(name)
        progress.best(name, 2.0, name + "2", 3.0)
    written = _CONTROL.sub("", file.getvalue())
    assert "\x1b]" not in written
    assert "\x07" not in written
    for line in (f"note {shown}", f"tuning {shown}", f"best so far: {shown} 2 ms; {shown}2 alone 3 ms"):
        assert line in written


def test_phases_that_are_put_in_words_are_there() -> None:
    folders = _CORE / "measuring", _CORE / "pipeline"
    sources = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    for name in _WORDS:
        assert f'"{name}"' in sources
