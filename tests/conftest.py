"""What several folders of tests share: the `collage` command, one small model optimised twice, golden
files.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

sys.path.append(str(Path(__file__).parent / "support"))
os.environ["COLLAGE_CALIBRATION"] = "off"  # some seconds for each test that begins with an empty database

from collage_command import BRIEFLY, Collage, Optimised
from hanging import HANGS, HangingClock

_GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/*.txt anew instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden("graph.txt", text)`: `text` is what tests/golden/graph.txt holds."""

    def compare(name: str, text: str) -> None:
        path = _GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text + "\n", encoding="utf-8")
            return
        assert path.is_file(), f"{path} is missing: pytest {request.path.parent} --update-golden"
        assert text + "\n" == path.read_text(encoding="utf-8"), f"to accept: pytest --update-golden ({name})"

    return compare


@pytest.fixture
def hanging_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers' limits are reached when `hanging.hang` is called, and not before."""
    monkeypatch.setenv(HANGS, str(tmp_path / "hangs"))
    monkeypatch.setattr("collage_core.worker.worker.clock", HangingClock())


@pytest.fixture
def collage(tmp_path: Path) -> Iterator[Collage]:
    command = Collage(tmp_path)
    yield command
    command.end_all()


@pytest.fixture(scope="session")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> Optimised:
    """Optimised once for all processes of a run; each has a copy of the costs and the bundle."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "optimised"
    folder.mkdir(exist_ok=True)
    model, bundle, reports = folder / "tiny_conv.onnx", folder / "tiny_conv.collage", folder / "reports.json"
    with (folder / "making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        if not reports.exists():
            _optimise(Collage(folder), model, bundle, reports)
    own = tmp_path_factory.mktemp("optimised")
    shutil.copytree(folder / "home", own / "home")
    shutil.copy(bundle, own)
    first, second = json.loads(reports.read_text())
    return Optimised(Collage(own), model, first, second, own / bundle.name)


def _optimise(collage: Collage, model: Path, bundle: Path, reports: Path) -> None:
    from collage_benchmarks.networks import NETWORKS

    onnx.save(NETWORKS["tiny_conv"].build(), model)
    first = collage.json("optimize", model, *BRIEFLY)
    second = collage.json("optimize", model, *BRIEFLY, "-o", bundle)
    reports.write_text(json.dumps([first, second]))
