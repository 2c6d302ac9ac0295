"""One measurement at a time on this machine, as far as one user's go."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from collage_core.errors import CollageError
from collage_core.folders import cache_folder, user_folder

__all__ = ["lock_path", "measuring_lock"]

_threads = threading.RLock()
_held = 0


def lock_path() -> Path:
    """$COLLAGE_LOCK, else a file in the user's own cache folder: whoever may open a lock may hold it.

    It does not depend on $COLLAGE_HOME, unless there can be no cache folder. To keep several users from
    measuring at once, $COLLAGE_LOCK names a file that all of them may read.
    """
    if named := os.environ.get("COLLAGE_LOCK"):
        return Path(named)
    for folder in (cache_folder(), user_folder()):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return folder / "measuring.lock"
    raise CollageError(f"cannot make {user_folder()} for the measuring lock; $COLLAGE_LOCK may name a file")


@contextmanager
def measuring_lock(on_wait: Callable[[str], object] | None = None) -> Iterator[None]:
    """Hold the machine for measuring: shared by all processes of a user, and by all threads of this one.

    Waits without a limit; where it has to, `on_wait` is called once with a line for the user. The kernel
    releases the lock when its holder dies. A thread that holds it may take it again. CollageError where the
    file cannot be opened, or is none.
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
    more than reading. Neither links are followed nor pipes waited for."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        while True:
            with suppress(FileNotFoundError):
                descriptor = os.open(path, flags)
                break
            with suppress(FileExistsError):
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL)
                os.fchmod(descriptor, 0o644)  # whatever the umask: others whom $COLLAGE_LOCK brings may read
                break
    except OSError as error:
        raise CollageError(f"cannot open the measuring lock {path}: {error.strerror or error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CollageError(f"cannot use {path} as the measuring lock: it is no regular file")
    return descriptor
