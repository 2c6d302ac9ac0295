"""Choices outlive the process that made them, and belong to one GPU, one library and one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from collage_cuda import choices
from collage_cuda.choices import Choices


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path))
    monkeypatch.setattr(choices, "facts", lambda: {"model": "a"})
    choices._files.cache_clear()
    yield tmp_path
    choices._files.cache_clear()


def test_what_was_kept_is_known_to_the_next() -> None:
    assert Choices(["lib", "1"]).known("k") is None
    Choices(["lib", "1"]).keep("k", b"\n\0way")
    assert Choices(["lib", "1"]).known("k") == b"\n\0way"
    Choices(["lib", "1"]).forget("k")
    assert Choices(["lib", "1"]).known("k") is None


def test_another_gpu_version_or_kernel_is_another_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    Choices(["lib", "1"]).keep("k", b"way")
    assert Choices(["lib", "2"]).known("k") is None
    assert Choices(["lib", "1"]).known("j") is None
    monkeypatch.setattr(choices, "facts", lambda: {"model": "b"})
    assert Choices(["lib", "1"]).known("k") is None


def test_what_is_built_is_kept_apart(home: Path) -> None:
    Choices(["lib", "1"]).keep("k", b"way")
    Choices(["lib", "1"], are_built=True).keep("k", b"engine")
    assert Choices(["lib", "1"]).known("k") == b"way"
    assert Choices(["lib", "1"], are_built=True).known("k") == b"engine"
    assert {p.name for p in (home / "cuda").iterdir()} == {"built", "choices"}


def test_half_a_choice_is_none(home: Path) -> None:
    Choices(["lib", "1"]).keep("k", b"a way that is long")
    (path,) = (home / "cuda" / "choices").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert Choices(["lib", "1"]).known("k") is None
