"""Every hook that Collage calls. A plugin is a module under the entry-point group `collage` that implements
some of them::

    from collage_core.plugins import hookimpl

    @hookimpl
    def collage_backends():
        from .backend import MyBackend
        return [MyBackend()]

All hooks are called in the user's process and again in every worker, when names are first looked up;
implementations must not load a vendor's library. Results of all plugins are joined, in order of
the plugins' names. One that raises costs only itself: `collage backends` says what it said. Returning None
means "nothing".
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from collage_core.backend import Backend
from collage_core.devices import Device
from collage_core.ir import Definition
from collage_core.peer import Peer
from collage_core.priors import Priors
from collage_core.quantizer import Quantizer

__all__ = [
    "collage_backends",
    "collage_definitions",
    "collage_devices",
    "collage_peers",
    "collage_priors",
    "collage_quantizers",
    "collage_searchers",
]

hookspec = pluggy.HookspecMarker("collage")


@hookspec
def collage_backends() -> Sequence[Backend] | None:
    """The backends that this plugin brings.

    Called once per process by `collage_core.plugins.Registry`. A backend that cannot run here is returned all
    the same, with the reason in its `info()`, so that `collage backends` can say why. Two plugins with one
    name are an error that names both.
    """


@hookspec
def collage_definitions() -> Sequence[Definition] | None:
    """What operators outside of ONNX compute, in ONNX's own. Called as `collage_backends`, when a model is
    read.

    They are put in the place of such operators, so that every backend may run them, and fuse them again.
    """


@hookspec
def collage_devices() -> Sequence[Device] | None:
    """Devices beside the CPU, which `collage optimize --devices cpu,NAME` lets take part.

    Called as `collage_backends`. The backends that run on them may come from other plugins.
    """


@hookspec
def collage_peers() -> Sequence[Peer] | None:
    """Whole runtimes to compare with, for `collage bench --against NAME`. Called as `collage_backends`; never
    placed on.
    """


@hookspec
def collage_priors() -> Sequence[Priors] | None:
    """What kernels of backends reached elsewhere. A plugin brings its own backend's; a package may bring no
    more than these. Called in the user's process only.

    Of one kind that several bring the median counts, unless this machine has shown it.
    """


@hookspec
def collage_quantizers() -> Sequence[Quantizer] | None:
    """Libraries that quantise models, for `collage quantize --with NAME`. Called as `collage_backends`."""


@hookspec
def collage_searchers() -> Sequence[object] | None:
    """Further searches (`collage_core.search.Searcher`), for `collage optimize --level NAME`.

    They run after the op level, whose result is theirs to improve on. Called when a search is looked up, in
    the user's process only.
    """
