"""ZIP archives whose entries are stored as they are, so that they can be mapped."""

from __future__ import annotations

import struct
import zipfile
from io import FileIO

__all__ = ["ARCHIVE", "check_size", "data_offset"]

ARCHIVE = b"PK\x03\x04"
"""How one begins."""

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


def check_size(info: zipfile.ZipInfo, most_bytes: int) -> None:
    """BadZipFile for what would unpack to more than it takes, or than that."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise zipfile.BadZipFile(f"{info.filename} is compressed")
    if info.file_size != info.compress_size or info.file_size > most_bytes:
        raise zipfile.BadZipFile(f"{info.filename} is said to have {info.file_size} bytes")


def data_offset(file: FileIO, info: zipfile.ZipInfo) -> int:
    """Where a stored entry's bytes begin: behind its local header, whose name and extra field may be longer
    than the directory's.
    """
    file.seek(info.header_offset)
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))[-2:]
    return info.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
