"""What a command reads it does not replace, and may be where nothing can be written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from small_models import relu_model

from collage_core.cli import commands
from collage_core.cli.main import main
from collage_core.costs import CostDatabase, CostKey, CostRecord, Policy

if TYPE_CHECKING:
    from tests.cli.conftest import Mistake

_KEY = CostKey("kernel", "k", "v", "a", {}, Policy())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(relu_model(), path)
    return path


def test_what_is_quantised_is_not_replaced(model: Path, tmp_path: Path, mistake: Mistake) -> None:
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.ones((4, 2, 3), np.float32))
    link = tmp_path / "link.onnx"
    link.symlink_to(model)
    for output, what in ((model, "model"), (link, "model"), (samples, "samples")):
        before = output.read_bytes()
        told = mistake("quantize", model, "--calibrate", samples, "-o", output)
        assert told == f"collage: cannot write {output}: it is the {what}"
        assert output.read_bytes() == before


def test_what_is_exported_is_not_replaced(bundle: Path, tmp_path: Path, mistake: Mistake) -> None:
    before = bundle.read_bytes()
    assert mistake("export", bundle, "-o", bundle) == f"collage: cannot write {bundle}: it is the bundle"
    notes = bundle.with_name("notes.txt")
    notes.write_text("mine")
    said = f"collage: cannot write {notes}: there is a file that is no bundle"
    assert mistake("export", bundle, "-o", notes) == said
    assert notes.read_text() == "mine"
    assert bundle.read_bytes() == before
    costs = tmp_path / "costs.sqlite"
    CostDatabase(costs).close()
    told = mistake("costs", "export", costs, "--costs", costs)
    assert told == f"collage: cannot write {costs}: it is the cost database"
    assert len(CostDatabase(costs)) == 0


def _read_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a read-only mount, which root cannot write to either."""
    access = os.access

    def may(p: str | Path, mode: int) -> bool:
        return access(p, mode) and (mode != os.W_OK or path not in (Path(p), *Path(p).parents))

    monkeypatch.setattr(os, "access", may)
    for p in (path, *path.iterdir()):
        p.chmod(p.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))


def test_costs_are_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "read_only"
    folder.mkdir()
    file = folder / "costs.sqlite"
    with CostDatabase(file) as database:
        database.put(_KEY, CostRecord("ok", 1.0), 3.0)
    before = file.read_bytes()
    _read_only(folder, monkeypatch)
    with CostDatabase(file, may_be_read_only=True) as database:
        assert not database.is_kept
        assert database.get(_KEY) == CostRecord("ok", 1.0)
        database.put(_KEY, CostRecord("ok", 2.0), 4.0)
        assert database.get(_KEY) == CostRecord("ok", 2.0)
    assert main(["costs", "--costs", str(file), "show"]) == 0
    assert "1 costs in" in capsys.readouterr().out
    with CostDatabase(folder / "none" / "costs.sqlite", may_be_read_only=True) as database:
        assert (len(database), database.is_kept) == (0, False)
    assert [p.name for p in folder.iterdir()] == ["costs.sqlite"]
    assert file.read_bytes() == before


def test_what_others_have_just_written_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies beside the file while they have that open."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    file = folder / "costs.sqlite"
    with CostDatabase(file) as theirs:
        theirs.put(_KEY, CostRecord("ok", 1.0), 3.0)
        _read_only(folder, monkeypatch)
        with CostDatabase(file, may_be_read_only=True) as ours:
            assert not ours.is_kept
            assert ours.get(_KEY) == CostRecord("ok", 1.0)


@pytest.mark.ci
def test_a_bundle_is_checked_where_nothing_can_be_written(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    _read_only(home, monkeypatch)
    assert main(["check", str(bundle), "--budget", "2s"]) in (0, 3)  # as fast as others, or not
    assert "costs.sqlite cannot be written: what is measured now is not kept" in capsys.readouterr().err
    assert not list(home.glob("costs.sqlite*"))


def test_an_output_of_another_type_than_the_model_says(tmp_path: Path, mistake: Mistake) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2,3] x) => (int64[2,3] y) { y = Relu (x) }'
    )
    onnx.save(model, tmp_path / "odd.onnx")
    told = mistake("optimize", tmp_path / "odd.onnx")
    assert told == "collage: the model says that its output 'y' is int64; it is float32"


def test_a_damaged_row_is_told_with_what_to_do(tmp_path: Path, mistake: Mistake) -> None:
    file = tmp_path / "costs.sqlite"
    with CostDatabase(file) as database:
        database.put(_KEY, CostRecord("ok", 1.0, reason="a reason to be found"), 3.0)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"a reason to be found", b"a reason\xff to be found"[:20]))
    told = mistake("costs", "--costs", file, "show")
    what = "cannot be read: a row of it is damaged; move the file away to start afresh"
    assert told == f"collage: cost database {file} {what}"


def test_a_plugin_that_would_end_the_process_is_told(
    monkeypatch: pytest.MonkeyPatch, mistake: Mistake
) -> None:
    def leave(args: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(commands.backends, "run", leave)
    told = mistake("backends")
    assert told.startswith(f"collage: a plugin would end the process: sys.exit(0) at {__file__}:")
