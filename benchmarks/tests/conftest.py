"""What the tests of collected runs share."""

from __future__ import annotations

import copy
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from collage_benchmarks.evidence.running import Tools

sys.path.append(str(Path(__file__).parent / "support"))


@pytest.fixture
def told() -> dict[str, Any]:
    """What the commands say instead of Collage's."""
    from fake_collage import BACKENDS, BENCHED, OPTIMIZED, SITTINGS

    reports = {"optimize": OPTIMIZED, "bench": BENCHED}
    return copy.deepcopy({"backends": BACKENDS, "sittings": SITTINGS, "print": reports})


@pytest.fixture
def tools(tmp_path: Path, told: dict[str, Any]) -> Tools:
    """A command that says what `told` holds when it is called, in place of Collage's, whose kernels would
    take minutes to measure.
    """
    from fake_collage import COMMAND

    script = tmp_path / "collage.py"
    script.write_text(textwrap.dedent(COMMAND))
    (tmp_path / "told.json").write_text(json.dumps(told))
    (tmp_path / "bundle").write_text("a bundle")
    return Tools(collage=(sys.executable, str(script)))
