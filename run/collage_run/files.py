"""Files that somebody has named: regular ones are read, without waiting for any other; they are written as a
whole or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from collage_run.errors import CollageError

__all__ = ["destination", "hold", "open_regular", "regular", "replacing", "written"]

_ATTEMPTS = 10
_PERMISSIONS = 0o777
_MOST_LINKS = 40
_MOST_NAME_BYTES = 200


def regular(path: str, flags: int) -> int:
    """A descriptor of a regular file, as an `opener` of `open`. A pipe is not waited for, and a device that
    never ends is not read.

    OSError, whose `strerror` says in a few words why it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a name that no file can have
        raise FileNotFoundError(errno.ENOENT, "no such file", path) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", path)
    return descriptor


def open_regular(path: str | Path) -> FileIO:
    """A regular file, to be read from its beginning. OSError as of `regular`."""
    try:
        return FileIO(path, opener=regular)
    except ValueError:  # a name that no file can have, before the opener is asked
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None


def destination(path: str | Path) -> Path:
    """The file that writing to `path` would write, links followed; it need not be there. OSError where links
    lead in a circle, of which `realpath` says nothing, where no file can have that name, and for a file that
    somebody has open (/dev/stdout, redirected): put in its place, another would not be what is written to.
    """
    try:
        os.stat(path)
    except FileNotFoundError:
        pass
    except ValueError as error:
        raise OSError(errno.EINVAL, f"no file can have that name ({error})", str(path)) from None
    if _is_descriptor(path) and os.path.isfile(path):
        raise OSError(errno.EINVAL, "it stands for a file that is open: give the name of that one", str(path))
    return Path(os.path.realpath(path))


def _is_descriptor(path: str | Path) -> bool:
    """Whether links lead to what a process has open, and not to a name."""
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(os.path.abspath(path))
        folder = os.path.realpath(folder)
        if folder.startswith("/proc/") and folder.endswith("/fd"):
            return True
        try:
            path = os.path.join(folder, os.readlink(os.path.join(folder, name)))
        except OSError:  # no link
            return False
    return False


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path beside `path` to write to. What is there takes the place of `path` when the block ends well, and
    has its permissions; after an error nothing of it is left, and `path` is as it was. Of several writers
    each one's is whole, and the last one's stays. OSError as from writing.

    Devices and pipes are no files to replace: they are written to directly, if somebody reads from the pipe.
    What killed processes have left of the same file is removed.
    """
    path = Path(path)
    # Asked of the path itself: what it leads to may have no name.
    if os.path.exists(path) and not path.is_file():
        with _open_to_others(path):
            yield path
        return
    path = destination(path)  # a link stays a link
    start = f".{_cut(path.name)}."
    for left in path.parent.glob(f"{glob.escape(start)}*.partial"):
        if (descriptor := hold(left)) is not None:
            with suppress(OSError):
                left.unlink()
            os.close(descriptor)
    # Of a name that nobody else has: neither another thread, nor a process of another machine or container.
    partial = path.with_name(f"{start}{secrets.token_hex(8)}.partial")
    held = None
    for _ in range(_ATTEMPTS):
        partial.touch()
        if (held := hold(partial)) is not None:  # else another writer has just taken it for a dead one's
            break
    try:
        if path.exists():  # before anything is in it: who may read it is as it was
            was = path.stat()
            with suppress(PermissionError):  # only root gives files away
                os.chown(partial, was.st_uid, was.st_gid)
            partial.chmod(was.st_mode & _PERMISSIONS)
        yield partial
        _sync(partial)  # or a power failure may leave an empty file in place of the old one
        partial.replace(path)
        _sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)
        if held is not None:
            os.close(held)


@contextmanager
def written(path: str | Path) -> Iterator[Path]:
    """As `replacing`, of a file that a person has named: CollageError, with that name, where it cannot be."""
    try:
        with replacing(path) as partial:
            yield partial
    except OSError as error:
        raise CollageError(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def _open_to_others(path: Path) -> Iterator[None]:
    """Keeps a device or pipe open, so that opening it once more does not wait. OSError where it cannot be."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads from it", str(path)) from None
        raise
    try:
        yield
    finally:
        os.close(descriptor)


def _cut(name: str) -> str:
    """As many characters as leave room for what is put around them: a name has at most 255 bytes."""
    while len(os.fsencode(name)) > _MOST_NAME_BYTES:
        name = name[:-1]
    return name


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hold(path: Path) -> int | None:
    """A descriptor that holds the lock (flock) of a file or folder, which the kernel releases however this
    process ends: who can take it has found something that nobody uses any more.

    None if somebody else holds it, or it is gone, somebody else's or no regular file or folder.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        if found.st_nlink and found.st_uid == os.getuid():  # no links: it was removed just before
            return descriptor
    os.close(descriptor)
    return None
