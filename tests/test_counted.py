"""What is counted for people."""

from __future__ import annotations

from typing import Any

from collage_core.counted import counted
from collage_core.report.text import tuning_text


def test_one_is_not_several() -> None:
    assert [counted(n, "thread") for n in (0, 1, 2)] == ["0 threads", "1 thread", "2 threads"]


def test_tuning_counts_so() -> None:
    report: dict[str, Any] = {"model": "m.onnx", "device": "cpu", "threads": 1, "seconds": 2.0}
    report |= {"peaks": {"gflops": 8.0, "memory_gb_per_s": 4.0}, "tuned": [], "left": [{}], "skipped": []}
    text = tuning_text(report)
    assert text.startswith("m.onnx on cpu, 1 thread: ")
    assert "\n\n1 group left by the budget" in text
