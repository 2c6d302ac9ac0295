"""Files of the user's own, of which there are no more bytes than is said."""

from __future__ import annotations

from pathlib import Path

from collage_core.private_files import PrivateFiles


def test_large_ones_do_not_wait_to_be_swept(tmp_path: Path) -> None:
    files = PrivateFiles(tmp_path / "kept", ".file", 1000)
    for number in range(20):
        files.put(str(number), [bytes(300)])
        assert sum(p.stat().st_size for p in (tmp_path / "kept").iterdir()) <= 1000


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    files = PrivateFiles(tmp_path / "kept", ".file", 1000)
    for number in range(20):
        files.put(str(number), [bytes(300)])
    newest = files.open("19")
    assert newest is not None
    newest.close()
    assert files.open("0") is None
