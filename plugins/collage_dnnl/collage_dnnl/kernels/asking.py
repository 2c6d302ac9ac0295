"""What the library says of plans. Nothing is compiled or packed."""

from __future__ import annotations

from collections.abc import Sequence

from collage_run.errors import BackendError

from collage_core.errors import Refusal
from collage_dnnl.kernels.kernel import describe
from collage_dnnl.kernels.plan import Plan
from collage_dnnl.library import Library

__all__ = ["first_refusal", "implementation_of"]


def first_refusal(library: Library, plans: Sequence[Plan]) -> Refusal | None:
    """None if the library has an implementation of one of the plans, else what it says of the first."""
    wrong: Refusal | None = None
    for plan in plans:
        try:
            describe(library, plan)
        except BackendError as error:
            wrong = Refusal(str(error)) if wrong is None else wrong
        else:
            return None
    return wrong


def implementation_of(library: Library, plan: Plan) -> str | None:
    """The library's name for the implementation of a plan; None if it has none."""
    try:
        return library.implementation(describe(library, plan).descriptor)
    except BackendError:
        return None
