"""Machine code in memory."""

from __future__ import annotations

import ctypes
import gc
import platform
from pathlib import Path
from typing import Any

import pytest
from collage_run.image import Image

# What it takes, to the function whose address lies at 16: mov rax, [rip + 9]; jmp rax
_CALLS = bytes.fromhex("488b0509000000 ffe0") + bytes(7) + bytes(8)
_INTEL = pytest.mark.skipif(platform.machine() != "x86_64", reason="it is machine code for x86-64")


def _image(name: str = "labs") -> Image:
    return Image(_CALLS, 0, 1, ((16, name),))


@_INTEL
def test_it_is_called() -> None:
    function = _image().load()
    assert function(ctypes.c_void_p(-7)) == 7
    again = Image.from_bytes(_image().to_bytes())
    assert again == _image()
    assert again.load()(ctypes.c_void_p(-8)) == 8


@_INTEL
def test_an_address_within_itself() -> None:
    inner = Image(bytes(16) + _CALLS[:9] + bytes(7) + bytes(8) + bytes.fromhex("31c0c3"), 16, 1, ((32, 40),))
    assert inner.load()(ctypes.c_void_p(5)) == 0  # at 40: xor eax, eax; ret


@_INTEL
def test_code_cannot_be_written_and_goes_with_its_function() -> None:
    def rights(address: int) -> str:
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, _, rest = line.partition("-")
            last, right, *_ = rest.split()
            if int(first, 16) <= address < int(last, 16):
                return right
        return ""

    function: Any = _image().load()
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    assert rights(address) == "r-xp"
    del function
    gc.collect()
    assert rights(address) == ""


def test_a_function_that_is_nowhere() -> None:
    with pytest.raises(OSError, match="no_such_function, which compiled code calls, is in none of"):
        _image("no_such_function").load()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json\ncode",
        _image().to_bytes().partition(b"\n")[0],
        _image().to_bytes()[:-1],
        Image(_CALLS, -1, 1, ()).to_bytes(),
        Image(_CALLS, 25, 1, ()).to_bytes(),
        Image(_CALLS, 0, 1, ((17, "labs"),)).to_bytes(),
        Image(_CALLS, 0, 1, ((-1, "labs"),)).to_bytes(),
        Image(_CALLS, 0, 1, ((8, 99),)).to_bytes(),
        Image(_CALLS, 0, 1, ((8, -9),)).to_bytes(),
    ],
)
def test_what_is_no_image(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"image|JSON|Expecting"):
        Image.from_bytes(data)
