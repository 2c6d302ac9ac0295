"""Exported bundles in a server: loaded often, run by many threads, shared by processes."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import collage_run
import numpy as np
import pytest
from collage_run import CollageError, InputError
from collage_run.__main__ import main

from collage_core import Bundle, Group, Placement, Target, export, plain_variant
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.testing import make_group, node


def _exported(folder: Path, width: int, threads: int) -> Path:
    """y = softmax(x @ w) of [16, width], compiled."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((width, width), np.float32) / width**0.5
    nodes = [node("MatMul", ["x", "w"], "m"), node("Softmax", ["m"], "y", axis=-1)]
    graph = make_group(nodes, {"x": np.zeros((16, width), np.float32)}, {"w": w}).graph
    parts = [Subgraph(graph, (n.id,)) for n in graph.nodes]
    groups = [Group("tvm", tuple(n.id for n in p.nodes), plain_variant(p)) for p in parts]
    export(Bundle(graph, Placement(tuple(groups), (), Target("cpu", threads))), folder / "m.deploy")
    return folder / "m.deploy"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _exported(tmp_path_factory.mktemp("small"), 64, 1)


def _x(seed: int, width: int = 64) -> Array:
    return np.random.default_rng(seed).standard_normal((16, width), np.float32)


def test_what_was_closed_runs_no_more(deployed: Path) -> None:
    with collage_run.load(deployed, allow_code=True) as executable:
        context = executable.context()
        expected = executable(_x(0))["y"]
    for use in (executable.context, lambda: executable(_x(0)), lambda: executable.run(_x(0))):
        with pytest.raises(CollageError, match="this executable is closed"):
            use()
    np.testing.assert_array_equal(context(_x(0))["y"], expected)


def test_warming_up_changes_no_answer(deployed: Path) -> None:
    expected = collage_run.load(deployed, allow_code=True)(_x(0))["y"]
    executable = collage_run.load(deployed, allow_code=True)
    executable.warm_up()
    np.testing.assert_array_equal(executable(_x(0))["y"], expected)


def _facts() -> tuple[int, int, int]:
    """Resident bytes, mappings and descriptors of this process."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    return resident, mappings, len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("loads", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_loading_and_closing_grows_by_nothing(loads: int, deployed: Path) -> None:
    def load() -> None:
        with collage_run.load(deployed, allow_code=True) as executable:
            executable(_x(1))

    for _ in range(50):
        load()
    resident, mappings, descriptors = _facts()
    for _ in range(loads):
        load()
    after = _facts()
    assert after[0] - resident < 4 << 20
    assert after[1] - mappings < 10
    assert after[2] == descriptors


def test_requests_of_eight_threads(deployed: Path) -> None:
    executable = collage_run.load(deployed, allow_code=True)
    expected = [executable(_x(i))["y"] for i in range(10)]
    contexts = [executable.context() for _ in range(8)]

    def serve(number: int) -> int:
        wrong = 0
        for i in range(125):
            request = (number + i) % len(expected)
            wrong += not np.array_equal(contexts[number](_x(request))["y"], expected[request])
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(serve, range(8))) == 0


def test_loading_in_threads(deployed: Path) -> None:
    expected = collage_run.load(deployed, allow_code=True)(_x(0))["y"]
    with ThreadPoolExecutor(8) as pool:
        loaded = pool.map(lambda _: collage_run.load(deployed, allow_code=True)(_x(0))["y"], range(40))
        for answer in loaded:
            np.testing.assert_array_equal(answer, expected)


_SHARING = """
import sys
import numpy as np
import collage_run
executable = collage_run.load(sys.argv[1], allow_code=True)
executable({"x": np.zeros((16, 2048), np.float32)})
print("loaded", flush=True)
sys.stdin.read(1)
mapped_kb = 0
for line in open("/proc/self/smaps"):
    if "m.deploy" in line:
        ours = True
    elif "-" in line.split()[0]:
        ours = False
    elif ours and line.startswith("Pss:"):
        mapped_kb += int(line.split()[1])
print(mapped_kb, flush=True)
sys.stdin.read(1)
"""


def test_processes_share_constants(tmp_path: Path) -> None:
    """16 MiB of them: each of four has its share."""
    path = _exported(tmp_path, 2048, 1)
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", _SHARING, str(path)], stdin=pipe, stdout=pipe, text=True)
        for _ in range(4)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
    told = []
    for process in started:  # none ends before the last has told
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("x")
        process.stdin.flush()
        told.append(int(process.stdout.readline()))
    for process in started:
        process.communicate("x")
    assert max(told) < 16 * 1024 * 0.6, f"{told} kB"
    assert sum(told) > 16 * 1024 * 0.9, f"{told} kB"


def test_the_command(deployed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(x, _x(3))
    given = [str(deployed), "--input", f"x={x}"]
    assert main([*given, "--output", f"y={y}", "--allow-code", "--repeat", "3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 3
    assert told["outputs"]["y"]["shape"] == [16, 64]
    np.testing.assert_array_equal(np.load(y), collage_run.load(deployed, allow_code=True)(_x(3))["y"])
    for arguments, said in (
        (given, "it brings machine code"),
        ([*given, "--allow-code", "--expect", "sha256:0"], "its digest is sha256:"),
        ([str(deployed), "--allow-code"], "input 'x' (float32[16,64]) is missing"),
        ([str(tmp_path / "no"), "--allow-code"], "no such file"),
        ([*given, "--allow-code", "--output", "z=z.npy"], "the model's outputs are y"),
    ):
        assert main(arguments) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("collage-run: ")
        assert said in err


def test_a_wrong_input_is_said(deployed: Path) -> None:
    with pytest.raises(InputError, match=r"input 'x' has shape \[3\]; the model's is \[16, 64\]"):
        collage_run.load(deployed, allow_code=True)(np.zeros(3, np.float32))


def test_what_nobody_has_any_more_is_gone_at_once(deployed: Path) -> None:
    """Not when the interpreter looks for cycles: a service that changes models has no room for two."""
    gc.disable()
    try:
        executable = collage_run.load(deployed, allow_code=True)
        executable(_x(0))
        kernels = [weakref.ref(kernel) for kernel in executable.kernels]
        del executable
        assert [kernel() for kernel in kernels] == [None] * len(kernels)
    finally:
        gc.enable()
