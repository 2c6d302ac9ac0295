"""Files that somebody has named, for reading: regular ones, and no waiting for any other."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["regular"]


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
