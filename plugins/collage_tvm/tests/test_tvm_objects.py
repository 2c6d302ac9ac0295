"""The cache of compiled objects."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collage_tvm import library
from collage_tvm.backend import TvmBackend
from collage_tvm.objects import ObjectCache

from collage_core.backend import Kernel, plain_variant
from collage_core.devices import IMMEDIATE
from collage_core.target import Target
from collage_core.testing import make_group, node

KEY, OTHER = "a" * 64, "b" * 64


def _scaled(factor: float) -> tuple[Kernel, Any]:
    x = np.linspace(-1, 1, 33, dtype=np.float32)
    made = node("Mul", ["x", "c"], ["o"])
    group = make_group([made], {"x": x}, {"c": np.float32(factor)})
    return TvmBackend().build(group, plain_variant(group), Target("cpu", 1)), x


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path))
    return tmp_path


def test_what_was_put_is_found(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "not" / "yet")
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"
    assert cache.get(OTHER) is None


@pytest.mark.parametrize("position", [0, 31, 32, -1])
def test_a_damaged_object_counts_as_missing(tmp_path: Path, position: int) -> None:
    cache = ObjectCache(tmp_path)
    cache.put(KEY, b"some code")
    [path] = tmp_path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 1
    path.write_bytes(damaged)
    assert cache.get(KEY) is None
    assert not path.exists()
    cache.put(KEY, b"some code")
    assert cache.get(KEY) == b"some code"


def test_a_truncated_object_counts_as_missing(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put(KEY, b"some code")
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:10])
    assert cache.get(KEY) is None


def test_an_object_under_another_key_counts_as_missing(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put(KEY, b"some code")
    (tmp_path / f"{OTHER}.object").write_bytes((tmp_path / f"{KEY}.object").read_bytes())
    assert cache.get(OTHER) is None
    assert cache.get(KEY) == b"some code"


def test_it_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ObjectCache(tmp_path / "objects").put(KEY, b"code")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "objects").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "objects" / f"{KEY}.object").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    ObjectCache(tmp_path).put(KEY, b"code")
    tmp_path.chmod(mode)
    cache = ObjectCache(tmp_path)
    with pytest.warns(UserWarning, match="others may write to it"):
        assert cache.get(KEY) is None
    with warnings.catch_warnings(action="error"):  # said once
        cache.put(OTHER, b"code")
        assert cache.get(OTHER) is None
    assert [p.name for p in tmp_path.iterdir()] == [f"{KEY}.object"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_somebody_elses_folder_is_not_used(tmp_path: Path) -> None:
    ObjectCache(tmp_path).put(KEY, b"code")
    os.chown(tmp_path, 12345, 12345)
    with pytest.warns(UserWarning, match="somebody else's"):
        assert ObjectCache(tmp_path).get(KEY) is None


@pytest.mark.parametrize("kind", ["link", "pipe", "writable"])
def test_objects_that_others_may_have_made_count_as_missing(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "objects"
    cache = ObjectCache(folder)
    cache.put(KEY, b"code")
    path = folder / f"{KEY}.object"
    if kind == "writable":
        path.chmod(0o666)
    elif kind == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.unlink()
        os.mkfifo(path)
    assert cache.get(KEY) is None


def test_the_least_recently_used_go(tmp_path: Path) -> None:
    written = ObjectCache(tmp_path)
    for k in range(8):
        written.put(f"{k}", bytes(1000))
        os.utime(tmp_path / f"{k}.object", (k, k))
    assert written.get("0") is not None  # used just now
    (tmp_path / "killed").write_bytes(bytes(10))
    os.utime(tmp_path / "killed", (0, 0))
    ObjectCache(tmp_path, max_bytes=3200).put("new", bytes(1000))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.object", "7.object", "new.object"]


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ObjectCache(tmp_path / "file" / "folder")
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None


def test_a_kernel_is_compiled_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, x = _scaled(3.0)
    assert len(list(home.rglob("*.object"))) == 1

    def never(*_: object) -> bytes:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(library.Function, "_object", never)
    again, _ = _scaled(3.0)
    for kernel in (first, again):
        o = np.empty_like(x)
        assert not kernel.bind([x], [o], np.empty(0, np.uint8), IMMEDIATE)()
        np.testing.assert_array_equal(o, x * np.float32(3.0))


@pytest.mark.usefixtures("home")
def test_constants_that_the_code_has_baked_in_tell_kernels_apart() -> None:
    """By as little as one unit in the last place."""
    for factor in (np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1))):
        kernel, x = _scaled(float(factor))
        o = np.empty_like(x)
        kernel.bind([x], [o], np.empty(0, np.uint8), IMMEDIATE)()
        np.testing.assert_array_equal(o, x * factor)


def test_another_process_finds_the_same_key(home: Path) -> None:
    """Names and order in a lowered function do not depend on what was compiled before, or on hash seeds."""
    _scaled(5.0)
    before = {p.name for p in home.rglob("*.object")}
    source = "import sys; sys.path.insert(0, sys.argv[1]); import conftest, test_tvm_objects as t; "
    source += "t._scaled(7.0); t._scaled(5.0)"
    folder = str(Path(__file__).parent)
    subprocess.run(
        [sys.executable, "-c", source, folder], check=True, env=os.environ | {"PYTHONHASHSEED": "7"}
    )
    after = {p.name for p in home.rglob("*.object")}
    assert before < after
    assert len(after) == 2


@pytest.mark.usefixtures("home")
def test_threads_share_a_function_and_its_pool() -> None:
    x = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    group = make_group([node("Abs", ["x"], ["o"])], {"x": x})
    kernel = TvmBackend().build(group, plain_variant(group), Target("cpu", 2))
    wrong: list[int] = []

    def work(seed: int) -> None:
        own, o = np.random.default_rng(seed).standard_normal(x.shape).astype(np.float32), np.empty_like(x)
        bound = kernel.bind([own], [o], np.empty(0, np.uint8), IMMEDIATE)
        for _ in range(200):
            o[...] = 0
            if bound() or not np.array_equal(o, np.abs(own)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
