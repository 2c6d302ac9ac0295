"""What is added to a product: as the epilogue's bias, or as the matrix C. Loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage_core.errors import Refusal
from collage_core.strided import Strided
from collage_cublas.chain import Addend
from collage_cublas.operation import Constant, Operand

__all__ = ["Added", "Term", "added"]


@dataclass(frozen=True, slots=True)
class Term:
    """An addend. index: which of the kernel's inputs it is, None for a constant. strided: broadcast to D."""

    addend: Addend
    index: int | None
    strided: Strided

    def with_strided(self, strided: Strided) -> Term:
        return replace(self, strided=strided)


@dataclass(frozen=True, slots=True)
class Added:
    """bias and c: None where there is none. c_strided: how C lies, as D does. beta: C's factor."""

    bias: Operand | None = None
    c: Operand | None = None
    c_strided: Strided | None = None
    beta: float = 0.0


def added(terms: Sequence[Term], d: Strided, dtype: str, name: str) -> Added | Refusal:
    """Which of the terms is bias and which C. d: the result, [..., m, n] column-major. dtype: in which all of
    them are stored. name: of the node that a Refusal is about.

    What an input adds is read as it lies: a bias is one vector, C a whole matrix. Constants become whichever
    is left.
    """
    found = Added()
    for term in sorted(terms, key=lambda t: t.index is None):  # constants serve as either
        bias, c = _as_bias(term, d, dtype), _as_matrix(term, d, dtype)
        if bias is not None and found.bias is None:
            found = replace(found, bias=bias)
        elif c is not None and found.c is None:
            operand, strided, beta = c
            found = replace(found, c=operand, c_strided=strided, beta=beta)
        else:
            return Refusal(f"{term.addend.name!r} is neither a bias nor a matrix to the library", name)
    return found


def _as_bias(term: Term, d: Strided, dtype: str) -> Operand | None:
    """A vector along D's rows, the same for every column and matrix; None if it is none."""
    *batch, rows, columns = term.strided.strides
    *batch_dims, m, n = d.dims
    repeats = all(s == 0 or size == 1 for s, size in zip((*batch, columns), (*batch_dims, n), strict=True))
    if not repeats:
        return None
    if term.index is None:
        return Constant(term.addend.name, (m,), (rows,), dtype, term.addend.factor)
    in_one_piece = m == 1 or rows == 1
    return term.index if in_one_piece and term.addend.factor == 1.0 else None


def _as_matrix(term: Term, d: Strided, dtype: str) -> tuple[Operand, Strided, float] | None:
    """A matrix like D, and its factor; None if an input is none."""
    *batch, row, column = term.strided.strides
    *batch_dims, m, n = d.dims
    if term.index is not None:
        whole = (m == 1 or row == 1) and (n == 1 or column >= m)
        return (term.index, term.strided, term.addend.factor) if whole else None
    # One matrix for all the batch where it is the same for all: it is stored so.
    own = [size if step else 1 for size, step in zip(batch_dims, batch, strict=True)]
    constant = Constant(term.addend.name, (*own, n, m), (*batch, column, row), dtype, term.addend.factor)
    stored = Strided.dense((*own, n, m), tuple(range(len(own) + 2)))
    return constant, stored.broadcast_to((*batch_dims, n, m)).swapped(), 1.0
