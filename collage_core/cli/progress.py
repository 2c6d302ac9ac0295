"""Progress on standard error: a live area on a terminal, lines in a log file and in a notebook."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from collage_run.printable import printable_line
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

__all__ = ["ProgressBars"]

_WORDS = {
    "in place": "running mixes to learn what their kernels take there",
    "in place again": "running a mix once more, that took longer than predicted",
    "calibrating": "learning what groups and crossings cost on this machine",
    "choosing": "comparing placements and single libraries to choose",
    "confirming": "comparing once more to confirm",
    "confirming again": "comparing once more, for longer",
    "benchmark": "comparing with whole runtimes",
}
"""Of phases that are called something else in the cost database."""

_LINE_EVERY_S = 10.0
"""How often a log is told at most how far a phase is."""
_REDRAWS_PER_S = 2.0
"""A redraw takes a processor for some milliseconds from whoever is being timed."""
_SPEED_S = 120.0
"""How far back it is looked for how long a step takes: one that compiles may take half a minute."""


class ProgressBars:
    """What is being done, how much of it is left, how long that may take, and the best so far.

    On a terminal that is an area which is drawn anew, and taken away at the end. Anywhere else it is a line
    for every phase and every better placement, and at most one every ten seconds in between. console: of
    standard error where None. clock: seconds, from anywhere.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._start_s = self._told_s = clock()
        self._deadline_s: float | None = None
        self._best = ""
        self._bars = Progress(  # Never started: it knows the steps and their speed, and is drawn by `_live`.
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[count]}", markup=False),
            _Left(table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[detail]}", markup=False),
            console=self._console,
            get_time=clock,
            speed_estimate_period=_SPEED_S,
            auto_refresh=False,
        )
        self._live = Live(
            console=self._console,
            get_renderable=self._area,
            refresh_per_second=_REDRAWS_PER_S,
            transient=True,
        )
        self._redraws = _can_redraw(self._console)

    def __enter__(self) -> Self:
        if self._redraws:
            try:
                self._live.start(refresh=True)
            except BaseException:  # Ctrl-C may come at any time
                self._live.stop()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def phase(self, name: str, total: int | None = None) -> None:
        name = printable_line(_WORDS.get(name, name))
        goes_on = any(task.description == name for task in self._bars.tasks)
        for task in self._bars.task_ids:
            self._bars.remove_task(task)
        self._bars.add_task(name, total=total, count=f"0 of {total}" if total else "", detail="")
        # Searching and measuring take turns: the same begins again and again.
        if not goes_on or self._clock() - self._told_s >= _LINE_EVERY_S:
            self._tell_where()

    def step(self, detail: str = "") -> None:
        if not self._bars.tasks:
            return
        (task,) = self._bars.tasks
        done = int(task.completed) + 1
        # A comparison goes on where it has to.
        count = f"{done} of {task.total:.0f}" if task.total and done <= task.total else f"{done} done"
        self._bars.update(task.id, advance=1, count=count, detail=printable_line(detail))
        if self._clock() - self._told_s >= _LINE_EVERY_S:
            self._tell_where()

    def note(self, text: str) -> None:
        if self._redraws:
            self._console.print(Text(printable_line(text)), soft_wrap=True)
        self._tell(text)

    def best(self, label: str, latency_ms: float, single: str | None, single_ms: float | None) -> None:
        best = printable_line(_best_text(label, latency_ms, single, single_ms))
        if best != self._best:
            self._best = best
            self._tell(best)

    def limit(self, seconds: float | None) -> None:
        if seconds is not None:
            self._deadline_s = self._clock() + seconds
            self._tell(self._left_in_all())

    def _tell(self, line: str) -> None:
        """A line of a log."""
        if self._redraws:
            return
        # Not by the console, which would wrap it, and make HTML of it in a notebook.
        line = f"{self._clock() - self._start_s:7.1f} s  {printable_line(line)}"
        print(line, file=self._console.file, flush=True)

    def _tell_where(self) -> None:
        """What is being done, and how much of that is left, in words."""
        self._told_s = self._clock()
        (task,) = self._bars.tasks
        parts = [part for part in (task.fields["count"], task.fields["detail"], _left(task)) if part]
        if parts and self._deadline_s is not None:
            parts.append(self._left_in_all())
        self._tell(f"{task.description}: {', '.join(parts)}" if parts else task.description)

    def _left_in_all(self) -> str:
        if self._deadline_s is None:
            return ""
        return f"at most {_span(max(0.0, self._deadline_s - self._clock()))} left in all"

    def _area(self) -> Group:
        lines = filter(None, [self._left_in_all(), self._best])
        return Group(self._bars, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


class _Left(TimeRemainingColumn):
    """The time left where it can be told."""

    def render(self, task: Task) -> Text:
        return super().render(task).append(" left") if _left(task) else Text()


def _left(task: Task) -> str:
    remaining_s = task.time_remaining
    return "" if remaining_s is None or task.finished else f"{_span(remaining_s)} left"


def _span(seconds: float) -> str:
    return str(timedelta(seconds=math.ceil(seconds)))


def _best_text(label: str, latency_ms: float, single: str | None, single_ms: float | None) -> str:
    if label == single:
        return f"best so far: {label} alone {_short(latency_ms)} ms"
    best = f"best so far: {label} {_short(latency_ms)} ms"
    if single is None or single_ms is None:
        return best
    return f"{best}; {single} alone {_short(single_ms)} ms ({single_ms / latency_ms:.2f} times)"


def _short(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100.0 else f"{ms:.3g}"


def _can_redraw(console: Console) -> bool:
    """Whether there is a terminal whose cursor can be moved.

    FORCE_COLOR makes rich take a file for a terminal. What a notebook runs with `!` has one, which cannot go
    back to a line above; whatever a kernel starts has its JPY_PARENT_PID.
    """
    possible = console.is_interactive and not console.is_jupyter and "JPY_PARENT_PID" not in os.environ
    return possible and console.file.isatty()
