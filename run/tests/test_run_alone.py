"""Exported bundles where nothing but what runs them is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import collage_run
import numpy as np
import pytest

from collage_core import Bundle, Group, Placement, Target, build, export
from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph
from collage_core.plugins import default_registry
from collage_core.testing import make_group, node

_ROOT = Path(__file__).parents[2]
_RUN = """
import sys
import numpy as np
import collage_run

executable = collage_run.load(sys.argv[1], allow_code=True, expect=sys.argv[2])
x = np.load(sys.argv[3])
np.save(sys.argv[4], executable({"x": x})["o"])
ours = ("collage_core", "onnx", "tvm", "llvmlite")
assert not [name for name in ours if name in sys.modules]
"""
_X = np.random.default_rng(0).standard_normal((1, 16, 20, 20), np.float32)


def _graph(convolves: bool) -> Graph:
    """A convolution (or not), a product and what stands between them."""
    rng = np.random.default_rng(1)
    constants: dict[str, Array] = {
        "w1": rng.standard_normal((16, 16, 3, 3), np.float32) / 12,
        "b1": rng.standard_normal(16, np.float32),
        "w2": rng.standard_normal((20, 30), np.float32),
    }
    nodes = [
        node("Conv", ["x", "w1", "b1"], "c", pads=[1, 1, 1, 1]) if convolves else node("Exp", ["x"], "c"),
        node("Relu", ["c"], "r"),
        node("MatMul", ["r", "w2"], "m"),
        node("Softmax", ["m"], "o", axis=-1),
    ]
    used: dict[str, Array] = {name: constants[name] for name in constants if convolves or name == "w2"}
    return make_group(nodes, {"x": _X}, used).graph


def _placed(backends: Sequence[str], threads: int, convolves: bool) -> Bundle:
    """Each part on the first of these that takes it row-major, so that as many of them as can take part."""
    graph, target, registry = _graph(convolves), Target("cpu", threads), default_registry()
    groups, left = [], list(backends)
    for ids in ((0, 1), (2,), (3,)):
        part = Subgraph(graph, tuple(graph.nodes[i].id for i in ids))
        for name in (*left, *backends):
            variants = registry.backend(name).variants(part, target)
            plain = [] if isinstance(variants, Refusal) else [v for v in variants if _is_plain(v)]
            if plain:
                groups.append(Group(name, tuple(n.id for n in part.nodes), plain[0], 1.0, 0.1))
                left = [b for b in left if b != name]
                break
    return Bundle(graph, Placement(tuple(groups), (), target))


def _is_plain(variant: Variant) -> bool:
    return all(f.is_plain for f in (*variant.inputs, *variant.outputs))


def write(folder: Path, backends: Sequence[str], threads: int, convolves: bool) -> None:
    """A bundle, its digest, its input, and what it answers where all is installed."""
    bundle = _placed(backends, threads, convolves)
    np.save(folder / "x.npy", _X)
    digest = export(bundle, folder / "m.deploy")
    expected = build(bundle.graph, bundle.placement)({"x": _X})["o"]
    again = collage_run.load(folder / "m.deploy", allow_code=True, expect=digest)({"x": _X})["o"]
    np.testing.assert_array_equal(again, expected)
    np.save(folder / "expected.npy", expected)
    (folder / "told.json").write_text(json.dumps([digest, bundle.placement.backends()]))


def _exported(
    folder: Path, backends: Sequence[str], threads: int, *, convolves: bool = True
) -> tuple[str, Array, list[str]]:
    """What `write` has written, in a process of its own: libraries keep their first number of threads. The
    digest, the right answer, and which backends take part.
    """
    code = f"from pathlib import Path; from test_run_alone import write; write(Path({str(folder)!r}), *{{}})"
    told = code.format((list(backends), threads, convolves))
    subprocess.run([sys.executable, "-c", told], check=True, cwd=Path(__file__).parent)
    digest, taking_part = json.loads((folder / "told.json").read_text())
    return digest, np.load(folder / "expected.npy"), taking_part


@pytest.mark.parametrize("threads", [1, 2])
def test_machine_code_runs_with_numpy_alone(threads: int, tmp_path: Path) -> None:
    digest, expected, _ = _exported(tmp_path, ["tvm"], threads, convolves=False)
    installed = tmp_path / "installed"
    installed.mkdir()
    numpy = Path(np.__file__).parent
    for package in (numpy, numpy.with_name("numpy.libs"), Path(collage_run.__file__).parent):
        if package.exists():
            (installed / package.name).symlink_to(package)
    code = f"import sys; sys.path.insert(0, {str(installed)!r})\n{_RUN}"
    files = [str(tmp_path / name) for name in ("m.deploy", "x.npy", "o.npy")]
    command = [sys.executable, "-I", "-S", "-c", code, files[0], digest, *files[1:]]
    subprocess.run(command, check=True)
    np.testing.assert_array_equal(np.load(files[2]), expected)


@pytest.mark.ci
@pytest.mark.parametrize("first", ["dnnl", "mkl", "ncnn", "onnxruntime", "openvino"])
def test_a_mix_runs_with_its_libraries_alone(first: str, tmp_path: Path, alone: Path) -> None:
    digest, expected, backends = _exported(tmp_path, [first, "mkl", "dnnl", "tvm"], 2)
    assert first in backends
    files = [str(tmp_path / name) for name in ("m.deploy", "x.npy", "o.npy")]
    command = [str(alone), "-c", _RUN, files[0], digest, *files[1:]]
    subprocess.run(command, check=True, cwd=tmp_path)
    np.testing.assert_array_equal(np.load(files[2]), expected)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which no compiler is, no ONNX, and nothing of Collage that searches."""
    folder = tmp_path_factory.mktemp("alone") / "environment"
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    plugins = [f"collage_{name}" for name in ("dnnl", "mkl", "ncnn", "onnxruntime", "openvino")]
    packages = [str(_ROOT / "run"), *(str(_ROOT / "plugins" / name) for name in plugins)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    pip = [str(python), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", *packages], check=True, env=environment)
    listed = [*pip, "list", "--format=freeze"]
    told = subprocess.run(listed, check=True, env=environment, capture_output=True, text=True).stdout
    names = {line.split("==")[0] for line in told.splitlines()}
    assert not names & {"collage-core", "onnx", "apache-tvm", "llvmlite"}
    return python
