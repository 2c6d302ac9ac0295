"""Object files made position-independent code."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping

import llvmlite.binding as llvm
import numpy as np
import pytest
from collage_tvm.linking import LinkError, link

_NOTHING_FILLED: Mapping[str, str] = {}


def _object(assembly: str, reloc: str = "pic", triple: str = "") -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple) if triple else llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=2, reloc=reloc, codemodel="small")
    return bytes(machine.emit_object(llvm.parse_assembly(assembly)))


_EXP = """
declare double @exp(double)

define internal double @helper(double %x) noinline {
  %y = fmul double %x, 3.0
  ret double %y
}

define i32 @run(ptr %from, ptr %to) {
  %x = load double, ptr %from
  %e = call double @exp(double %x)
  %t = call double @helper(double %e)
  store double %t, ptr %to
  ret i32 0
}
"""

_CALLS = """
@launch = weak global ptr null

define internal i32 @helper(ptr %x) noinline {
  %f = load ptr, ptr @launch
  %r = call i32 %f(ptr %x)
  ret i32 %r
}

define i32 @run(ptr %x) {
  %r = call i32 @helper(ptr %x)
  %s = add i32 %r, 1
  ret i32 %s
}
"""

_PROVIDES = """
define internal i32 @helper(ptr %x) noinline {
  %v = load i32, ptr %x
  %w = mul i32 %v, 10
  ret i32 %w
}

define i32 @provided(ptr %x) {
  %r = call i32 @helper(ptr %x)
  ret i32 %r
}
"""


def test_functions_of_libraries_and_constants() -> None:
    function = link([_object(_EXP)], "run", 2, _NOTHING_FILLED).load()
    x, y = np.array([1.5]), np.zeros(1)
    assert function(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p)) == 0
    assert y[0] == pytest.approx(3 * np.exp(1.5), rel=1e-15)


def test_variables_that_are_filled_and_functions_of_one_name() -> None:
    image = link([_object(_CALLS), _object(_PROVIDES)], "run", 1, {"launch": "provided", "no": "body"})
    x = np.array([4], np.int32)
    assert image.load()(x.ctypes.data_as(ctypes.c_void_p)) == 41


_TABLE = """
@table = internal unnamed_addr constant [3 x ptr] [ptr @one, ptr @two, ptr @three]
define internal i32 @one() { ret i32 1 }
define internal i32 @two() { ret i32 2 }
define internal i32 @three() { ret i32 3 }
define i32 @run(ptr %x) {
  %i = load i32, ptr %x
  %at = getelementptr [3 x ptr], ptr @table, i32 0, i32 %i
  %f = load ptr, ptr %at
  %r = call i32 %f()
  ret i32 %r
}
"""


def test_a_table_of_addresses() -> None:
    function = link([_object(_TABLE)], "run", 1, _NOTHING_FILLED).load()
    for i in range(3):
        x = np.array([i], np.int32)
        assert function(x.ctypes.data_as(ctypes.c_void_p)) == i + 1


@pytest.mark.parametrize(
    ("assembly", "reloc", "triple", "why"),
    [
        ("@n = global i32 5\ndefine ptr @run() { ret ptr @n }", "pic", "", "data that it may change"),
        ("@n = global i32 0\ndefine ptr @run() { ret ptr @n }", "pic", "", "data that it may change"),
        ("@n = thread_local global i32 5\ndefine ptr @run() { ret ptr @n }", "pic", "", "section .tdata"),
        (_TABLE, "static", "", "a reference of kind"),
        ("define i32 @other() { ret i32 0 }", "pic", "", "it has no 'run'"),
        (_PROVIDES, "pic", "aarch64-unknown-linux-gnu", "no object file for x86-64"),
        (_PROVIDES, "pic", "armv7-unknown-linux-gnueabihf", "no ELF file of 64 bits"),
    ],
)
def test_what_is_not_known_is_refused(assembly: str, reloc: str, triple: str, why: str) -> None:
    with pytest.raises(LinkError, match=why):
        link([_object(assembly, reloc, triple)], "run", 1, _NOTHING_FILLED)


def _damaged(data: bytes) -> Iterator[bytes]:
    yield from (data[:end] for end in range(0, len(data), 37))
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        yield bytes(changed)


def test_a_damaged_object_is_linked_or_refused() -> None:
    refused = 0
    for data in _damaged(_object(_EXP)):
        try:
            link([data], "run", 2, _NOTHING_FILLED)
        except LinkError:
            refused += 1
    assert refused > 100
