"""Numbers and texts that no file should hold."""

from __future__ import annotations

__all__ = ["INTEGERS", "TEXTS"]

INTEGERS = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 65, 1000, 2**16, 2**31 - 1, 2**31, 2**40, 2**62]
"""Around what counters, sizes and types can hold."""
TEXTS = [
    "",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "weights.bin",
    "none\0none",
    "two\nlines",
    "\x1b[31mred",
    "x" * 1000,
    "reference",
    "tvm",
    "dnnl",
    "onnxruntime",
    "openvino",
    "os.system",
    "float32",
    "float64",
    "1e400",
    "99999999999999999999",
    "-1",
    "pragma_import_llvm",
    "Tensorize",
]
"""Paths, names and numbers that lead elsewhere, or nowhere."""
