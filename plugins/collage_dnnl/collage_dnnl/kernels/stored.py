"""Kernels that were stored, run again."""

from __future__ import annotations

from collage_run.errors import BackendUnavailableError
from collage_run.kernel import StoredKernel

from collage_dnnl.kernels.kernel import PrimitiveKernel
from collage_dnnl.kernels.plan_json import plan_of
from collage_dnnl.library import load

__all__ = ["restore"]


def restore(stored: StoredKernel) -> PrimitiveKernel:
    """The same again; primitives are compiled, constants are not packed. BackendUnavailableError where oneDNN
    is not here, another one, or one that takes other implementations.
    """
    library, facts = load(), stored.facts
    kernel = PrimitiveKernel(library, plan_of(stored), facts["threads"])
    if kernel.implementations != facts["implementations"]:
        made_for, here = (" and ".join(names) for names in (facts["implementations"], kernel.implementations))
        raise BackendUnavailableError(f"made for oneDNN {made_for}; here it is {here}")
    return kernel
