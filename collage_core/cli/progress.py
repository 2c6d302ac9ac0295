"""Progress on standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from collage_core.printable import printable

__all__ = ["ProgressBars"]


class ProgressBars:
    """A bar for each phase of the pipeline; on a terminal only, so that logs stay short."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def phase(self, name: str, total: int | None = None) -> None:
        self._finish()
        self._task = self._bars.add_task(name, total=total, detail="")
        if not self._console.is_terminal:
            self.note(name + (f" ({total})" if total else ""))

    def step(self, detail: str = "") -> None:
        if self._task is not None:
            self._bars.update(self._task, advance=1, detail=detail)

    def note(self, text: str) -> None:
        self._console.print(printable(text), highlight=False, markup=False)

    def best(self, label: str, latency_ms: float, single: str | None, single_ms: float | None) -> None:
        self.note(f"best so far: {label} {latency_ms:.3f} ms")

    def limit(self, seconds: float | None) -> None:
        pass

    def _finish(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, detail="")
            self._bars.stop_task(self._task)
