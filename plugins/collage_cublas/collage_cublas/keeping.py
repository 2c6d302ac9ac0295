"""What was chosen for a product, kept on disk for the next process that builds it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from collage_core.errors import BackendError
from collage_cublas.library import Algorithm, Library
from collage_cublas.product import Product

__all__ = ["keep", "recall"]

_CHOICE = struct.Struct("<B64s")
"""Which of the ways to run it, and a cublasLtMatmulAlgo_t."""


def keep(choices: Any, products: Sequence[Product], chosen: tuple[int, Algorithm]) -> None:
    """choices: `collage_cuda.choices.Choices`. products: the ways among which was chosen."""
    index, algorithm = chosen
    choices.keep(_described(products), _CHOICE.pack(index, algorithm.data.tobytes()))


def recall(library: Library, choices: Any, products: Sequence[Product]) -> tuple[int, Algorithm] | None:
    """What was kept, if the library still takes it; None otherwise."""
    kept = choices.known(_described(products))
    if kept is None:
        return None
    try:
        index, data = _CHOICE.unpack(kept)
        return index, library.restored(products[index], data)
    except (struct.error, IndexError, BackendError):
        choices.forget(_described(products))
        return None


def _described(products: Sequence[Product]) -> str:
    """All that a choice depends on, beside the library and the GPU."""
    return "\n".join(map(repr, products))
