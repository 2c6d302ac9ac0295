"""Several `collage optimize` on one database: killed at any moment, and at the same time."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from collage_command import NO_COSTS, Collage
from onnx import TensorProto, helper, numpy_helper
from processes import processes_with, wait_until

from collage_core.costs import CostDatabase
from collage_core.plugins import PLUGINS_VARIABLE
from collage_core.runtime import read

_PLUGINS = Path(__file__).parent / "plugins"
_SUPPORT = Path(__file__).parents[1] / "support"
_SHARED, _LAYERS = 2, 16
_KILLS = 50
_TIERS = {k: [pytest.mark.ci] for k in (9, 15)}
"""Those that are not for the nightly session alone."""
_SEED = 20261120


def _with_logging(collage: Collage) -> Collage:
    """The command with the logging backend."""
    path = os.pathsep.join(filter(None, [str(_PLUGINS), str(_SUPPORT), os.environ.get("PYTHONPATH")]))
    collage.variables.update(
        {
            "PYTHONPATH": path,
            PLUGINS_VARIABLE: "costs_logging_backend",
            "COLLAGE_TEST_LOG": str(collage.folder / "log"),
            "OPENBLAS_NUM_THREADS": "1",
            "TERM": "xterm",
            "COLUMNS": "150",
        }
    )
    return collage


@pytest.fixture
def ready(collage: Collage) -> Collage:
    return _with_logging(collage)


def _layered(path: Path, last: int) -> Path:
    """A network of products and Relu whose first layers are the same for every `last`."""
    widths = [8 * (k + 1) for k in range(_SHARED)] + [last + k for k in range(_LAYERS - _SHARED)]
    nodes, weights, value = [], [], "x"
    for k, (rows, columns) in enumerate(pairwise([8, *widths])):
        weights.append(numpy_helper.from_array(np.full((rows, columns), 1 / rows, np.float32), f"w{k}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{k}"], [f"m{k}"], name=f"product {k}"))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [f"r{k}"], name=f"relu {k}"))
        value = f"r{k}"
    graph = helper.make_graph(
        nodes,
        "layered",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [4, widths[-1]])],
        weights,
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def _arguments(model: Path) -> tuple[str | Path, ...]:
    return (
        "optimize",
        model,
        "--threads",
        "1",
        "--rounds",
        "4",
        "--backends",
        "logging",
        "-o",
        model.with_suffix(".collage"),
    )


class Screen:
    """A terminal for a command's standard error, and what was written to it."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._said = b""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):  # the last writer has gone
            while chunk := os.read(self._ours, 1 << 16):
                self._said += chunk

    def told(self) -> int:
        """How many costs the progress bars have said to be measured, at least: each bar begins anew."""
        shown = re.findall(
            r"measuring what the best placements.*?(\d+) of \d+", self._said.decode(errors="replace")
        )
        return max(map(int, shown), default=0)

    def close(self) -> None:
        os.close(self.theirs)


@pytest.fixture(scope="module")
def moments_s(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Times after the start of a run, anywhere up to its end."""
    whole = _with_logging(Collage(tmp_path_factory.mktemp("whole")))
    model = _layered(whole.folder / "m.onnx", 24)
    screen = Screen()
    start = time.monotonic()
    process = whole.start(*_arguments(model), stderr=screen.theirs)
    process.communicate(timeout=600)
    assert process.returncode == 0
    duration_s = time.monotonic() - start
    assert screen.told() > 0, "the progress bars are understood"
    screen.close()
    numbers = random.Random(_SEED)
    return sorted(numbers.uniform(0, duration_s) for _ in range(_KILLS))


@pytest.mark.parametrize(
    "number",
    [pytest.param(k, marks=_TIERS.get(k, [pytest.mark.slow])) for k in range(_KILLS)],
)
def test_killed_at_any_moment(ready: Collage, moments_s: Sequence[float], number: int) -> None:
    model = _layered(ready.folder / "m.onnx", 24)
    bundle = model.with_suffix(".collage")
    screen = Screen()
    process = ready.start(*_arguments(model), stderr=screen.theirs)
    time.sleep(moments_s[number])
    told = screen.told()
    stored = ready.stored()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    screen.close()

    assert wait_until(lambda: not processes_with(f"COLLAGE_HOME={ready.home}"))
    assert len(stored) >= told
    kept = ready.stored()
    assert stored.items() <= kept.items()
    if kept:
        with closing(sqlite3.connect(ready.home / "costs.sqlite")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    if (ready.folder / "lock").exists():
        with (ready.folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if bundle.exists():
        read(bundle)

    report = ready.json(*_arguments(model))
    final = ready.stored()
    assert kept.items() <= final.items(), "what was known is not measured again"
    told = len(final) - len(kept) - report["search"]["measured"]
    assert told in range(3), "what the machine can do, and what was found, is kept, too"
    read(bundle)
    assert list(ready.temporary.iterdir()) == []
    assert {p.name for p in ready.folder.iterdir()} <= {"m.onnx", "m.collage", "home", "tmp", "lock", "log"}
    assert processes_with(f"COLLAGE_HOME={ready.home}") == set()


@pytest.mark.ci
@pytest.mark.alone
def test_two_at_once_share_costs_and_do_not_time_each_other(ready: Collage) -> None:
    models = [_layered(ready.folder / f"m{width}.onnx", width) for width in (24, 40)]
    running = [ready.start(*_arguments(model), "--json") for model in models]
    ended = [process.communicate(timeout=600) for process in running]
    assert [p.returncode for p in running] == [0, 0], ended
    assert any("another measurement is running" in err for _, err in ended)

    runs: dict[int, list[tuple[int, int]]] = {p.pid: [] for p in running}
    for line in (ready.folder / "log").read_text().splitlines():
        supervisor, start_ns, end_ns = map(int, line.split())
        runs[supervisor].append((start_ns, end_ns))
    first, second = (sorted(runs[p.pid]) for p in running)
    assert first[0] < second[-1], "they ran at the same time"
    assert second[0] < first[-1], "they ran at the same time"
    _assert_disjoint(sorted(first + second))

    with CostDatabase(ready.home / "costs.sqlite") as database:
        costs = [c for c in database.items() if c.key.kind not in NO_COSTS]
    kernels = [c for c in costs if c.key.kind == "kernel"]
    assert len(kernels) > 3 * _LAYERS
    _assert_disjoint(sorted((c.created_at - c.record.seconds, c.created_at) for c in kernels))

    reports = [json.loads(out) for out, _ in ended]
    assert all(r["search"]["measured"] > 0 for r in reports)
    for model in models:
        again = ready.json(*_arguments(model))
        assert again["search"]["measured"] == 0
    assert {f"{c.key.kind} {c.key.digest}" for c in costs} == ready.stored().keys()


def _assert_disjoint(spans: Sequence[tuple[float, float]]) -> None:
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start
