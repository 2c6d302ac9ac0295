"""What the tests of the command line and of reports share: the `collage` command, and one small model
optimised twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

sys.path.append(str(Path(__file__).parent / "support"))

from collage_command import Collage, Optimised


@pytest.fixture
def collage(tmp_path: Path) -> Iterator[Collage]:
    command = Collage(tmp_path)
    yield command
    command.end_all()


@pytest.fixture(scope="session")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> Optimised:
    from collage_benchmarks.networks import NETWORKS

    collage = Collage(tmp_path_factory.mktemp("optimised"))
    model, bundle = collage.folder / "tiny_conv.onnx", collage.folder / "tiny_conv.collage"
    onnx.save(NETWORKS["tiny_conv"].build(), model)
    first = collage.json("optimize", model, "--threads", "1")
    second = collage.json("optimize", model, "--threads", "1", "-o", bundle)
    return Optimised(collage, model, first, second, bundle)
