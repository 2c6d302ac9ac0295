"""One measurement at a time on this machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["lock_path", "measuring_lock"]

_threads = threading.RLock()
_held = 0


def lock_path() -> Path:
    """The file that all users of this machine lock: $COLLAGE_LOCK, or one that does not depend on $TMPDIR,
    which is not the same for all of them.
    """
    if named := os.environ.get("COLLAGE_LOCK"):
        return Path(named)
    shared = Path("/tmp")
    return (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "collage-measuring.lock"


@contextmanager
def measuring_lock(on_wait: Callable[[str], object] | None = None) -> Iterator[None]:
    """Hold the machine for measuring: shared by all processes and users, and by all threads of this process.

    Waits without a limit; where it has to, `on_wait` is called once with a line for the user. The kernel
    releases the lock when its holder dies. A thread that holds it may take it again.
    """
    global _held
    if not _threads.acquire(blocking=False):
        _tell(on_wait)
        _threads.acquire()
    try:
        if _held:
            _held += 1
            try:
                yield
            finally:
                _held -= 1
            return
        descriptor = _open(lock_path())
        try:
            _lock(descriptor, on_wait)
            _held = 1
            try:
                yield
            finally:
                _held = 0
        finally:
            os.close(descriptor)
    finally:
        _threads.release()


def _lock(descriptor: int, on_wait: Callable[[str], object] | None) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _tell(on_wait)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _tell(on_wait: Callable[[str], object] | None) -> None:
    if on_wait is not None:
        on_wait("another measurement is running on this machine; waiting for it to finish")


def _open(path: Path) -> int:
    """A descriptor of the lock file. Opened for reading, and created only where it is missing: in a sticky
    directory Linux may refuse O_CREAT on another user's file (fs.protected_regular), and flock asks for no
    more than reading."""
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        try:
            created = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        except FileExistsError:
            continue
        os.fchmod(created, 0o666)
        return created
