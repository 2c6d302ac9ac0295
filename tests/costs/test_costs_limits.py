"""Limits of candidates, and files and folders that a killed process leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx.parser
import pytest
from collage_run.files import replacing

from collage_core import Target, optimize
from collage_core.costs import CostDatabase
from collage_core.costs.limits import candidate_limit_s, worker_memory_bytes
from collage_core.errors import CollageError
from collage_core.measuring.progress import Silent
from collage_core.measuring.temporary import TemporaryFolder

_HOLDER = """
import sys, time
from pathlib import Path
from collage_core.measuring.temporary import TemporaryFolder
from collage_run.files import replacing
folder = TemporaryFolder()
(folder.path / "deep").mkdir()
(folder.path / "deep" / "file").write_text("x")
with replacing(sys.argv[1]) as partial:
    partial.write_text("half")
    print(folder.path, partial, flush=True)
    time.sleep(60)
"""


def test_limits_have_defaults_and_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLAGE_CANDIDATE_LIMIT_S", raising=False)
    monkeypatch.delenv("COLLAGE_WORKER_MEMORY_MIB", raising=False)
    assert candidate_limit_s() == 60
    (total_kib,) = (
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    )
    assert 64 << 20 < worker_memory_bytes() <= total_kib << 9
    monkeypatch.setenv("COLLAGE_CANDIDATE_LIMIT_S", "2.5")
    monkeypatch.setenv("COLLAGE_WORKER_MEMORY_MIB", "100")
    assert candidate_limit_s() == 2.5
    assert worker_memory_bytes() == 100 << 20
    for wrong in ("much", "-1", "0", "nan", "inf"):
        monkeypatch.setenv("COLLAGE_CANDIDATE_LIMIT_S", wrong)
        with pytest.raises(CollageError, match=f"COLLAGE_CANDIDATE_LIMIT_S must be .* '{wrong}'"):
            candidate_limit_s()


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    target = tmp_path / "m[1].collage"
    target.write_text("whole")
    bystanders = [tmp_path / "collage-measuring.lock", tmp_path / ".m[1].collage.notes"]
    for b in bystanders:
        b.write_text("")
    (tmp_path / "collage-other").mkdir()
    holders = [
        subprocess.Popen([sys.executable, "-c", _HOLDER, str(target)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    held = []
    for holder in holders:
        assert holder.stdout is not None
        held.append([Path(p) for p in holder.stdout.readline().split()])
    dead, alive = held
    holders[0].send_signal(signal.SIGKILL)
    holders[0].communicate()
    assert all(p.exists() for p in dead + alive)
    assert target.read_text() == "whole"

    ours = TemporaryFolder()
    with replacing(target) as partial:
        partial.write_text("new")
    assert not any(p.exists() for p in dead)
    assert all(p.exists() for p in [*alive, *bystanders, tmp_path / "collage-other", ours.path])
    assert target.read_text() == "new"
    ours.remove()
    ours.remove()
    assert not ours.path.exists()
    holders[1].kill()
    holders[1].communicate()


class Teller(Silent):
    """Counts what is told to be measured, and looks whether it is kept."""

    def __init__(self, costs: Path) -> None:
        self._costs = costs
        self._measuring = False
        self.told = 0

    def phase(self, name: str, total: int | None = None) -> None:
        self._measuring = name.startswith("measuring ")

    def step(self, detail: str = "") -> None:
        if self._measuring:
            self.told += 1
            with CostDatabase(self._costs) as database:
                assert len(database) >= self.told


def test_a_cost_is_kept_before_it_is_told(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[4] x) => (float y) { r = Relu(x) y = Neg(r) }'
    teller = Teller(tmp_path / "c.sqlite")
    model = onnx.parser.parse_model(text)
    optimize(
        model, backends=[], target=Target("cpu", 1), costs=tmp_path / "c.sqlite", progress=teller, rounds=0
    )
    assert teller.told == 2
