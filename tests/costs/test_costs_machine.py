"""The machine's measuring lock and its fingerprint."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from collage_run.processor import _VECTOR_INSTRUCTIONS

from collage_core.backend import Backend, BackendInfo, BackendKind, Kernel, Variant
from collage_core.costs import cache_sizes_bytes, environment_of, measuring_lock
from collage_core.costs.lock import lock_path
from collage_core.errors import CollageError, Refusal
from collage_core.ir import Subgraph
from collage_core.measuring.calibration import calibration_environment
from collage_core.measuring.end_to_end import end_to_end_environment
from collage_core.reference import ReferenceBackend
from collage_core.sources import source_hash
from collage_core.target import Processor, Target

HOLDER = """
import sys, time
from collage_core.costs.lock import measuring_lock
with measuring_lock():
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_holders_death_releases_the_lock() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    said: list[str] = []

    def kill(line: str) -> None:
        said.append(line)
        holder.kill()

    with measuring_lock(kill):
        pass
    assert len(said) == 1
    assert "another measurement" in said[0]
    holder.communicate()
    with measuring_lock(said.append):
        pass
    assert len(said) == 1


def test_a_thread_may_take_it_again_and_others_wait() -> None:
    order: list[str] = []
    waiting = threading.Event()

    def wait(_: str) -> None:
        order.append("waits")
        waiting.set()

    def other() -> None:
        with measuring_lock(wait):
            order.append("other")

    with measuring_lock():
        with measuring_lock():
            thread = threading.Thread(target=other)
            thread.start()
            assert waiting.wait(120)
        order.append("first")
    thread.join()
    assert order == ["waits", "first", "other"]


def test_the_lock_is_free_again_after_an_error() -> None:
    for _ in range(3):
        with pytest.raises(RuntimeError), measuring_lock():
            raise RuntimeError
    with measuring_lock(lambda _: pytest.fail("it was not released")):
        pass


def test_all_users_can_use_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_LOCK", str(tmp_path / "lock"))
    before = os.umask(0o077)
    try:
        with measuring_lock():
            assert lock_path().parent == tmp_path
            assert stat.S_IMODE(lock_path().stat().st_mode) == 0o644  # reading is all that a lock needs
    finally:
        os.umask(before)


def test_the_lock_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two homes of one user share it; where there can be no cache folder, it is in the home."""
    monkeypatch.delenv("COLLAGE_LOCK", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))
    with measuring_lock():
        assert lock_path() == tmp_path / "cache" / "collage" / "measuring.lock"
    assert stat.S_IMODE(lock_path().parent.stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with measuring_lock():
        assert lock_path() == tmp_path / "home" / "measuring.lock"
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(CollageError, match="COLLAGE_LOCK may name a file"), measuring_lock():
        pass


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "missing folder"])
def test_what_is_no_lock_file_is_named_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe would wait for a writer for ever, a link would create a file where somebody else wants it."""
    path, target = tmp_path / "lock", tmp_path / "target"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(target)
    elif kind == "folder":
        path.mkdir()
    else:
        path = tmp_path / "no" / "lock"
    monkeypatch.setenv("COLLAGE_LOCK", str(path))
    with pytest.raises(CollageError, match=re.escape(str(path))), measuring_lock():
        pass
    assert not target.exists()


class Plain(Backend):
    name = "plain"
    kind = BackendKind.OPERATOR

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, self.kind, "1.2", None)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return []

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        raise NotImplementedError


def test_environment_tells_versions_threads_and_machine_apart() -> None:
    one, two = (environment_of(ReferenceBackend(), Target(threads=n)) for n in (1, 2))
    assert {k for k in one if one[k] != two[k]} == {"threads"}
    assert all(isinstance(v, str) for v in one.values())
    assert one["plugin"]
    assert one["library"]
    assert one["source"]
    assert one["cores"] == str(os.cpu_count())
    assert environment_of(Plain(), Target())["plugin"] == "1.2"
    assert environment_of(Plain(), Target())["library"] == ""


def test_how_many_processors_the_process_may_use_counts() -> None:
    """Also where the threads stay the same."""
    allowed = os.sched_getaffinity(0)
    before = environment_of(Plain(), Target(threads=1))
    assert before["cpus"] == str(len(allowed))
    if len(allowed) == 1:
        pytest.skip("the process may use one processor")
    os.sched_setaffinity(0, sorted(allowed)[:1])
    try:
        after = environment_of(Plain(), Target(threads=1))
    finally:
        os.sched_setaffinity(0, allowed)
    assert {k for k in before if before[k] != after[k]} == {"cpus"}


def test_costs_on_graph_libraries_depend_on_what_makes_their_models() -> None:
    class Library(Plain):
        kind = BackendKind.GRAPH

    assert "handover" not in environment_of(Plain(), Target())
    assert environment_of(Library(), Target())["handover"] == source_hash("collage_core.ir") != ""


def test_what_ran_is_known_with_the_code_that_ran_it() -> None:
    code = source_hash("collage_run")
    assert end_to_end_environment(Target())["run"] == code != ""
    assert calibration_environment({"plain": Plain()}, Target())["run"] == code


def test_the_source_hash_changes_with_any_file_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "hashed_plugin"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "code.py").write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("hashed_plugin.inner.code")

    def hashed() -> str:
        source_hash.cache_clear()
        return source_hash("hashed_plugin.inner.code")

    first = hashed()
    assert first == source_hash("hashed_plugin.inner")
    (package / "notes.txt").write_text("not code")
    assert hashed() == first
    (package / "inner" / "code.py").write_text("a = 2\n")
    second = hashed()
    (package / "inner" / "code.py").rename(package / "inner" / "renamed.py")
    assert len({first, second, hashed()}) == 3
    assert source_hash("no_such_module") == ""


def test_last_level_cache_is_plausible() -> None:
    assert 1 << 18 <= cache_sizes_bytes()[-1] <= 4 << 30


def test_instructions_that_bundles_need() -> None:
    """What a processor of one vendor lists, a bundle made on it must not ask of the other's."""
    amd = "fpu sse sse2 ssse3 sse4_1 sse4_2 sse4a misalignsse fma fma4 avx avx2 f16c sme smep smap avx512f"
    intel = "fpu sse sse2 ssse3 sse4_1 sse4_2 fma avx avx2 f16c smep smap avx512f amx_tile avx512_bf16"
    arm = "fp asimd asimdhp sve sve2 i8mm bf16 sme2"

    def vector(flags: str) -> set[str]:
        return {f for f in flags.split() if _VECTOR_INSTRUCTIONS.match(f)}

    common = {"sse", "sse2", "ssse3", "sse4_1", "sse4_2", "fma", "avx", "avx2", "f16c", "avx512f"}
    assert vector(amd) == common
    assert vector(intel) == common | {"amx_tile", "avx512_bf16"}
    assert Processor("intel", tuple(vector(intel))).multiplies_bfloat16
    assert Processor("arm", tuple(vector(arm))).multiplies_bfloat16
    assert not Processor("older", tuple(common)).multiplies_bfloat16
    assert Processor("arm", tuple(vector(arm))).multiplies_int8
    assert Processor("zen 4", tuple(vector(f"{amd} avx512_vnni"))).multiplies_int8
    assert not Processor("older", tuple(common)).multiplies_int8
    assert vector(arm) == {"asimd", "asimdhp", "sve", "sve2", "i8mm", "bf16", "sme2"}
