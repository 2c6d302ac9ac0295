"""Random operators: equal seeds give equal numbers, for any shape and element type.

The numbers are NumPy's (`RandomState`); ONNX prescribes none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = [
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
]


def _generator(op: OpRun, seed: float | None) -> np.random.RandomState:
    """The operator's own, which goes on from run to run: in a loop each trip draws other numbers."""
    made: np.random.RandomState | None = getattr(op, "_generator", None)
    if made is None:
        made = np.random.RandomState(None if seed is None or not np.isfinite(seed) else int(seed) % 2**32)
        op._generator = made  # type: ignore[attr-defined]
    return made


def _as_type(numbers: Tensor | float, element_type: int | None, like: Tensor | None = None) -> Tensor:
    """In the element type that is stated (ONNX's number; 0 and None: none is), or in that of `like`."""
    if not element_type and like is not None:
        return np.asarray(numbers).astype(like.dtype)
    return np.asarray(numbers).astype(helper.tensor_dtype_to_np_dtype(element_type or 1))


def _uniform(op: OpRun, shape: Sequence[int], low: float, high: float, seed: float | None) -> Tensor:
    return np.asarray(_generator(op, seed).uniform(low, high, tuple(shape)))


def _normal(op: OpRun, shape: Sequence[int], mean: float, scale: float, seed: float | None) -> Tensor:
    return np.asarray(_generator(op, seed).normal(mean, scale, tuple(shape)))


class RandomUniform(OpRun):
    def _run(
        self,
        dtype: int | None = None,
        high: float = 1.0,
        low: float = 0.0,
        seed: float | None = None,
        shape: Sequence[int] = (),
    ) -> tuple[Tensor]:
        return (_as_type(_uniform(self, shape, low, high, seed), dtype),)


class RandomUniformLike(OpRun):
    def _run(
        self,
        x: Tensor,
        dtype: int | None = None,
        high: float = 1.0,
        low: float = 0.0,
        seed: float | None = None,
    ) -> tuple[Tensor]:
        return (_as_type(_uniform(self, x.shape, low, high, seed), dtype, x),)


class RandomNormal(OpRun):
    def _run(
        self,
        dtype: int | None = None,
        mean: float = 0.0,
        scale: float = 1.0,
        seed: float | None = None,
        shape: Sequence[int] = (),
    ) -> tuple[Tensor]:
        return (_as_type(_normal(self, shape, mean, scale, seed), dtype),)


class RandomNormalLike(OpRun):
    def _run(
        self,
        x: Tensor,
        dtype: int | None = None,
        mean: float = 0.0,
        scale: float = 1.0,
        seed: float | None = None,
    ) -> tuple[Tensor]:
        return (_as_type(_normal(self, x.shape, mean, scale, seed), dtype, x),)


class Bernoulli(OpRun):
    def _run(self, p: Tensor, dtype: int | None = None, seed: float | None = None) -> tuple[Tensor]:
        return (_as_type(_uniform(self, p.shape, 0, 1, seed) < p.astype(np.float64), dtype, p),)


class Multinomial(OpRun):
    """The input holds unnormalised logarithms of probabilities; each outcome takes its share of [0, 1)."""

    def _run(
        self, x: Tensor, dtype: int | None = None, sample_size: int = 1, seed: float | None = None
    ) -> tuple[Tensor]:
        wide = x.astype(np.float64)
        shares = np.exp(wide - wide.max(axis=1, keepdims=True)).cumsum(axis=1)
        drawn = _uniform(self, (x.shape[0], sample_size), 0, 1, seed) * shares[:, -1:]
        chosen = [np.searchsorted(s, d, side="right") for s, d in zip(shares, drawn, strict=True)]
        outcomes = np.minimum(np.reshape(chosen, drawn.shape), x.shape[1] - 1)
        return (_as_type(outcomes, dtype or 6),)
