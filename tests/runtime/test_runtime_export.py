"""Bundles that bring their kernels."""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import collage_run
import numpy as np
import pytest
from bundle_edits import members_of, packed
from collage_run import environment, exported, restoring

from collage_core import Bundle, Group, Placement, Target, export, load, plain_variant, read, save
from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, StoredKernel, Variant
from collage_core.devices import Queue
from collage_core.errors import (
    BackendError,
    BackendUnavailableError,
    BundleError,
    CollageError,
    OtherTargetError,
    Refusal,
)
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph
from collage_core.plugins import Registry
from collage_core.runtime.bundle import told_in
from collage_core.testing import make_group, node

_X = np.linspace(-1, 1, 100, dtype=np.float32)
_W = np.linspace(1, 2, 100, dtype=np.float32)
_TARGET = Target("cpu", 1)


class _Scaled(Kernel):
    restored = 0

    def __init__(self, factor: Array) -> None:
        self.factor = factor

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any, queue: Queue) -> Bound:
        def call() -> None:
            np.multiply(inputs[0], self.factor, out=outputs[0])

        return call

    def stored(self) -> StoredKernel | None:
        return StoredKernel("scaled", {}, b"machine code", (self.factor,))


class _Scaler(Backend):
    name = "scaler"
    built_for = 0

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", None)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        (name,) = subgraph.constants
        type(self).built_for = target.threads
        return _Scaled(subgraph.graph.constants[name])


def _restored(stored: StoredKernel) -> Kernel:
    assert stored.code == b"machine code"
    _Scaled.restored += 1
    return _Scaled(stored.arrays[0])


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Scaled, "restored", 0)
    monkeypatch.setattr(restoring, "_restorer", {"scaled": _restored}.__getitem__)


@pytest.fixture
def registry() -> Registry:
    registry = Registry(entry_points=False)
    registry.backends["scaler"] = _Scaler()
    return registry


def _graph() -> Graph:
    """y = x * w * v, and w itself is an output, too."""
    nodes = [node("Mul", ["x", "w"], ["a"]), node("Mul", ["a", "v"], ["y"])]
    return make_group(nodes, {"x": _X}, {"w": _W, "v": 2 * _W}).graph


def _bundle() -> Bundle:
    graph = _graph()
    parts = [Subgraph(graph, (n.id,)) for n in graph.nodes]
    groups = [Group("scaler", tuple(n.id for n in p.nodes), plain_variant(p), 1.0, 0.1) for p in parts]
    return Bundle(graph, Placement(tuple(groups), (), _TARGET))


@pytest.fixture
def deployed(tmp_path: Path, registry: Registry) -> tuple[Path, str]:
    path = tmp_path / "m.deploy"
    return path, export(_bundle(), path, registry)


def _right(outputs: dict[str, Array]) -> None:
    np.testing.assert_array_equal(outputs["y"], _X * _W * (2 * _W))


def test_it_runs_without_the_backend(deployed: tuple[Path, str]) -> None:
    path, digest = deployed
    for expected in (None, digest, digest.removeprefix("sha256:").upper()):
        _right(collage_run.load(path, allow_code=True, expect=expected)(_X))
    assert _Scaled.restored == 6
    _right(load(path, Registry(entry_points=False), allow_code=True, expect=digest)(_X))
    assert _Scaled.restored == 8


def test_no_code_runs_that_was_not_allowed(deployed: tuple[Path, str], registry: Registry) -> None:
    path, digest = deployed
    with pytest.raises(BundleError, match="it brings machine code, which may do anything"):
        collage_run.load(path)
    for expected in (None, digest):
        _right(load(path, registry, expect=expected)(_X))
    assert _Scaled.restored == 0


def test_it_is_a_bundle_like_others(deployed: tuple[Path, str], registry: Registry, tmp_path: Path) -> None:
    bundle = read(deployed[0], check_weights=True)
    assert bundle.placement.digest == _bundle().placement.digest
    save(bundle, tmp_path / "again.collage")
    assert not exported.brings_code(tmp_path / "again.collage")
    assert exported.brings_code(deployed[0])
    with pytest.raises(BundleError, match="it brings no kernels"):
        collage_run.load(tmp_path / "again.collage", allow_code=True)


def test_constants_are_aligned_and_cannot_be_written(deployed: tuple[Path, str]) -> None:
    for kernel in collage_run.load(deployed[0], allow_code=True).kernels:
        assert isinstance(kernel, _Scaled)
        assert kernel.factor.ctypes.data % 64 == 0
        assert not kernel.factor.flags.writeable


def test_another_processor_is_refused_or_built_for(
    deployed: tuple[Path, str], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, digest = deployed
    monkeypatch.setattr(exported, "runs_code_of", lambda: "another one")
    monkeypatch.setattr(exported, "_model_name", lambda: "Abacus 9000")
    with pytest.raises(OtherTargetError, match=r"its code is for .*; this is Abacus 9000"):
        collage_run.load(path, allow_code=True)
    with pytest.warns(UserWarning, match=r"this is Abacus 9000: its kernels are built anew"):
        _right(load(path, registry, allow_code=True, expect=digest)(_X))
    assert _Scaled.restored == 0
    _rewritten(path, "model.onnx", lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    with (
        pytest.warns(UserWarning, match="built anew"),
        pytest.raises(BundleError, match=r"model\.onnx is not what was written"),
    ):
        load(path, registry, allow_code=True)


def test_another_number_of_threads_is_refused_or_built_for(
    deployed: tuple[Path, str], registry: Registry
) -> None:
    path, _ = deployed
    _right(collage_run.load(path, allow_code=True, threads=1)(_X))
    with pytest.raises(OtherTargetError, match="its code is for another number of threads: 1, not 2"):
        collage_run.load(path, allow_code=True, threads=2)
    _Scaled.restored = 0
    with pytest.warns(UserWarning, match="another number of threads: 1, not 2") as told:
        _right(load(path, registry, allow_code=True, threads=2)(_X))
    assert [str(w.message).removeprefix(f"{path}: ") for w in told] == [
        "its code is for another number of threads: 1, not 2: its kernels are built anew",
        "measured on another number of threads: 1, not 2",
    ]
    assert _Scaled.restored == 0
    assert _Scaler.built_for == 2
    for none in (0, -1, 2.0, "2", True):
        with pytest.raises(CollageError, match=f"threads must be 1 to 1024, not {none!r}"):
            load(path, registry, allow_code=True, threads=none)  # type: ignore[arg-type]
        with pytest.raises(BundleError, match=f"threads is a whole number above 0, not {none!r}"):
            collage_run.load(path, allow_code=True, threads=none)  # type: ignore[arg-type]


def test_an_export_that_does_not_say_its_number_of_threads_runs_on_its_own(
    deployed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of format 1."""
    path, read_program = deployed[0], exported._program

    def silent(*of: Any) -> dict[str, Any]:
        return {name: told for name, told in read_program(*of).items() if name != "threads"}

    monkeypatch.setattr(exported, "_program", silent)
    _right(collage_run.load(path, allow_code=True)(_X))
    with pytest.raises(OtherTargetError, match="another number of threads: unknown, not 1"):
        collage_run.load(path, allow_code=True, threads=1)


def test_another_digest_is_refused(deployed: tuple[Path, str], registry: Registry) -> None:
    other = "sha256:" + "0" * 64
    with pytest.raises(BundleError, match=f"its digest is {deployed[1]}, not {other}"):
        collage_run.load(deployed[0], allow_code=True, expect=other)
    for allowed in (False, True):
        with pytest.raises(BundleError, match=f"its digest is {deployed[1]}, not {other}"):
            load(deployed[0], registry, allow_code=allowed, expect=other)
    assert _Scaled.restored == 0


def _rewritten(path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """One file of the archive changed, by somebody who knows how archives are written."""
    members = members_of(path)
    path.write_bytes(packed({**members, name: change(members[name])}))


@pytest.mark.parametrize("name", ["weights.bin", "model.onnx", "placement.json", "manifest.json"])
def test_what_is_read_is_what_was_exported(name: str, deployed: tuple[Path, str], registry: Registry) -> None:
    """Though no digest is expected, and the archive's own sums are right."""
    executable = load(deployed[0], registry, allow_code=True)
    _rewritten(deployed[0], name, lambda data: data + b" ")
    with pytest.raises(BundleError, match=f"{name} is not what was written"):
        load(deployed[0], registry)
    if name.endswith(".json"):  # what is told of compiled kernels
        with pytest.raises(
            BundleError, match=f"^{re.escape(str(deployed[0]))}: {name} is not what was written"
        ):
            told_in(deployed[0], executable, None)


@pytest.mark.parametrize("at", [0, 5, 100, -1])
def test_changed_kernels_are_refused(at: int, deployed: tuple[Path, str]) -> None:
    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1
        return bytes(changed)

    _rewritten(deployed[0], "kernels.bin", change)
    with pytest.raises(BundleError, match=r"kernels\.bin is not what was written"):
        collage_run.load(deployed[0], allow_code=True)
    assert _Scaled.restored == 0


def _program(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        told = json.loads(data)
        change(told)
        return json.dumps(told).encode()

    return changed


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["places"][0].__setitem__(0, -64),
        lambda told: told["places"][0].__setitem__(0, 1 << 40),
        lambda told: told["places"][0].__setitem__(1, [1 << 40]),
        lambda told: told["places"][0].__setitem__(1, [-100]),
        lambda told: told["places"][0].__setitem__(2, "no dtype"),
        lambda told: told["places"][0].__setitem__(3, [3]),
        lambda told: told["calls"][0].__setitem__("kernel", 99),
        lambda told: told["calls"][0].__setitem__("reads", [99]),
        lambda told: told["kernels"][0].__setitem__("code", [0, 1 << 40]),
        lambda told: told["kernels"][0].__setitem__("code", [-8, 4]),
        lambda told: told["kernels"][0]["arrays"][0].__setitem__("offset", 1 << 40),
        lambda told: told["kernels"][0]["arrays"][0].__setitem__("shape", [1 << 50]),
        lambda told: told.pop("calls"),
        lambda told: told.__setitem__("arena_bytes", "many"),
        lambda told: told["files"].pop("kernels.bin"),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(
    change: Callable[[dict[str, Any]], object], deployed: tuple[Path, str]
) -> None:
    """As somebody may write it who knows how, and whom nobody asks for a digest."""
    _rewritten(deployed[0], "program.json", _program(change))
    with pytest.raises(BundleError) as refused:
        collage_run.load(deployed[0], allow_code=True)
    assert str(refused.value).startswith(str(deployed[0]))
    assert len(str(refused.value).splitlines()) == 1


def test_a_pinned_program_cannot_be_changed(deployed: tuple[Path, str]) -> None:
    path, digest = deployed
    _rewritten(path, "program.json", _program(lambda told: told.__setitem__("processor", "this one")))
    with pytest.raises(BundleError, match=r"its digest is sha256:\w{64}, not"):
        collage_run.load(path, allow_code=True, expect=digest)


@pytest.mark.parametrize("change", ["another file", "a file twice", "a file less"])
def test_other_files_are_refused(
    change: str, deployed: tuple[Path, str], registry: Registry, tmp_path: Path
) -> None:
    path, digest = deployed
    if change == "a file less":
        path.write_bytes(packed({n: d for n, d in members_of(path).items() if n != "placement.json"}))
    else:
        with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
            warnings.simplefilter("ignore")  # of the second of a name
            archive.writestr("singles.json" if change == "another file" else "placement.json", "{}")
    refused = pytest.raises(BundleError, match="it has other files than it had when it was written")
    with refused:
        collage_run.load(path, allow_code=True)
    for allowed in (False, True):
        with refused:
            load(path, registry, allow_code=allowed, expect=digest)
    assert _Scaled.restored == 0


def test_constants_that_lie_elsewhere_are_refused(deployed: tuple[Path, str]) -> None:
    """Whatever somebody has packed anew: code may read whole vectors from where they were aligned."""
    _rewritten(deployed[0], "manifest.json", lambda data: data)
    with pytest.raises(BundleError, match="its files do not lie where they were written"):
        collage_run.load(deployed[0], allow_code=True)


def test_kernels_have_the_room_that_they_want(
    deployed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Scaled, "workspace_bytes", 64)
    with pytest.raises(BundleError, match=r"scaler: nodes 0: it wants 64 bytes of scratch memory"):
        collage_run.load(deployed[0], allow_code=True)


def test_libraries_find_their_variables(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Scaler, "environment", lambda self, target: {"ABACUS_BEADS": str(target.threads)})
    monkeypatch.setattr(environment, "_told", {})
    monkeypatch.delenv("ABACUS_BEADS", raising=False)
    export(_bundle(), tmp_path / "m.deploy", registry)
    environment._told.clear()
    monkeypatch.delenv("ABACUS_BEADS")
    collage_run.load(tmp_path / "m.deploy", allow_code=True)
    assert os.environ["ABACUS_BEADS"] == "1"
    monkeypatch.setitem(environment._told, "ABACUS_BEADS", "2")
    with pytest.raises(BackendError, match="needs ABACUS_BEADS=1, and libraries in this process run with 2"):
        collage_run.load(tmp_path / "m.deploy", allow_code=True)


def test_another_version_of_a_library_is_built_for(
    deployed: tuple[Path, str], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restorer(stored: StoredKernel) -> Kernel:
        raise BackendUnavailableError("made for abacus 9; here it is 8")

    monkeypatch.setattr(restoring, "_restorer", {"scaled": restorer}.__getitem__)
    path, digest = deployed
    said = "scaler: nodes 0: made for abacus 9; here it is 8"
    with pytest.raises(BackendUnavailableError, match=said):
        collage_run.load(path, allow_code=True)
    with pytest.warns(UserWarning, match=f"{said}: its kernels are built anew"):
        _right(load(path, registry, allow_code=True, expect=digest)(_X))


@pytest.mark.parametrize("size", [0, 1, 100, -1, -100, -1000])
def test_a_file_that_was_cut_short_is_refused(size: int, deployed: tuple[Path, str]) -> None:
    path = deployed[0]
    whole = path.stat().st_size
    os.truncate(path, size if size >= 0 else whole + size)
    with pytest.raises(BundleError, match="not an exported bundle, or a damaged one"):
        collage_run.load(path, allow_code=True)


def test_a_newer_format_is_refused_or_built_for(deployed: tuple[Path, str], registry: Registry) -> None:
    _rewritten(deployed[0], "program.json", _program(lambda told: told.__setitem__("version", 4)))
    with pytest.raises(BundleError, match="exported in format 4; this release reads formats up to 3"):
        collage_run.load(deployed[0], allow_code=True)
    assert load(deployed[0], registry) is not None, "without its code it is a bundle like others"


def test_what_cannot_be_stored_is_said(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Scaled, "stored", lambda self: None)
    with pytest.raises(BundleError, match=r"cannot be stored: scaler: nodes \d"):
        export(_bundle(), tmp_path / "m.deploy", registry)
    assert not list(tmp_path.iterdir())


def test_a_kind_that_nobody_knows(deployed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    known = "no package that is installed here runs kernels of kind 'scaled'"
    with pytest.raises(BackendUnavailableError, match=known):
        collage_run.load(deployed[0], allow_code=True)


def test_nothing_is_warned_of_where_all_is_well(deployed: tuple[Path, str], registry: Registry) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(deployed[0], registry, allow_code=True)
