"""Kernels that are loaded without TVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from collage_core import Bundle, Group, Placement, Target, plain_variant, save
from collage_core.ir import Subgraph
from collage_core.testing import make_group, node

_LOAD = """
import sys
import numpy as np
import collage_core
executable = collage_core.load(sys.argv[1])
np.save(sys.argv[2], executable({"x": np.load(sys.argv[3])})["o"])
print("tvm" in sys.modules)
"""


def _load(bundle: Path, output: Path, x: Path, home: Path) -> bool:
    """Whether a new process that runs it has loaded TVM."""
    environment = os.environ | {"COLLAGE_HOME": str(home)}
    command = [sys.executable, "-c", _LOAD, str(bundle), str(output), str(x)]
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return ran.stdout.strip() == "True"


@pytest.mark.parametrize("threads", [1, 2])
def test_what_was_loaded_before_needs_no_compiler(threads: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 32), np.float32)
    constants = {
        "w": rng.standard_normal((32, 50), np.float32),
        "b": rng.standard_normal(50, np.float32),
        "s": rng.standard_normal((20, 1), np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Add", ["p", "b"], ["a"]),
        node("Mul", ["a", "s"], ["m"]),
        node("Softmax", ["m"], ["o"], axis=-1),
    ]
    group = make_group(nodes, {"x": x}, constants)
    graph, target = group.graph, Target("cpu", threads)
    ids = tuple(n.id for n in group.nodes)
    parts = [ids[:2], ids[2:]]
    groups = [Group("tvm", part, plain_variant(Subgraph(graph, part)), 1.0, 0.1) for part in parts]
    save(Bundle(graph, Placement(tuple(groups), (), target)), tmp_path / "m.collage")
    np.save(tmp_path / "x.npy", x)
    loaded = [
        _load(tmp_path / "m.collage", tmp_path / f"{i}.npy", tmp_path / "x.npy", tmp_path / "home")
        for i in range(2)
    ]
    assert loaded == [True, False]
    np.testing.assert_array_equal(np.load(tmp_path / "0.npy"), np.load(tmp_path / "1.npy"))
