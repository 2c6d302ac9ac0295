"""A bundle in the shape of a session of ONNX Runtime.

The methods and their arguments are those of ONNX Runtime's Python API
(https://onnxruntime.ai/docs/api/python/api_summary.html), as far as a placed model has what they are about.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from collage_core.errors import InputError
from collage_core.formats import Array
from collage_core.inference.binding import IOBinding, NodeArg, empty_of
from collage_core.inference.contexts import Contexts
from collage_core.inference.profiles import Profiles
from collage_core.runtime import load_profiles

if TYPE_CHECKING:
    from collage_core.background import Background, BackgroundState, Improving

__all__ = ["Session"]


class Session:
    """A bundle, ready to run, in the shape of `onnxruntime.InferenceSession`.

        session = Session("model.collage")
        [scores] = session.run(None, {"x": x})

    A bundle of several profiles serves the shapes that these have, and fewer rows where that is proven to be
    the same (docs/adr/0047).

    May be called by several threads at once. Kernels run in threads of their own, which sessions of the
    process share (docs/adr/0050): as many calls beside each other as there are processors for, or as a bundle
    for throughput was made for. The others wait. It is a context manager; `close` lets go of all.
    """

    def __init__(
        self,
        path: str | Path,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        allow_code: bool = False,
        expect: str | None = None,
        optimize: str | Background | None = None,
    ) -> None:
        """Load a bundle, as `load` does, and run it once on zeros, so that the first request is no slower.

        sess_options: ONNX Runtime's, of which `intra_op_num_threads` is heard; None, or 0 threads, for what
        the placement was made for. providers, provider_options: not read, for the placement says who runs
        what. allow_code, expect: see `load`.

        optimize: "background", or how (`Background`), to look for better placements whenever nobody asks.
        path may be a model then; the first placement of it that answers is waited for.
        """
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        self._profiles: Profiles | Improving
        if optimize is None:
            loaded = load_profiles(path, allow_code=allow_code, expect=expect, threads=threads)
            self._profiles = Profiles(loaded)
        else:
            from collage_core.background import Background, Improving

            opened = partial(load_profiles, path, allow_code=allow_code, expect=expect, threads=threads)
            self._profiles = Improving(path, Background.of(optimize), opened, Contexts, threads)
            weakref.finalize(self, self._profiles.close_apart).atexit = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of kernels and buffers. A call that is running ends well; another one is refused."""
        self._profiles.close()

    @property
    def optimization(self) -> BackgroundState | None:
        """Where the optimisation in the background is; None where none was asked for."""
        return None if isinstance(self._profiles, Profiles) else self._profiles.state

    def get_inputs(self) -> list[NodeArg]:
        """In the model's order. A size that requests may differ in is None."""
        return [NodeArg(name, type) for name, type in self._profiles.inputs.items()]

    def get_outputs(self) -> list[NodeArg]:
        """As `get_inputs`."""
        return [NodeArg(name, type) for name, type in self._profiles.outputs.items()]

    def get_providers(self) -> list[str]:
        """The backends that run something, by Collage's names, in the order in which they first do."""
        return self._profiles.backends()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """The outputs that are named, in that order, as fresh row-major arrays; all in the model's order for
        None or an empty list. One that is named twice is the same array twice.

        input_feed: arrays by name, of a profile's shapes and the model's dtypes. run_options: not read.
        InputError names what does not fit; BackendError the step that failed.
        """
        wanted = self._wanted(output_names)
        if not isinstance(input_feed, Mapping):
            raise InputError(f"input_feed is a {type(input_feed).__name__}, and not arrays by name")
        inputs = {name: np.asarray(value) for name, value in input_feed.items()}
        profile = self._profiles.of(inputs)
        buffers = {name: empty_of(profile.buffers[name]) for name in wanted}
        outputs = profile.run(inputs, buffers)
        return [outputs[name] if outputs[name] is buffers[name] else outputs[name].copy() for name in wanted]

    def io_binding(self, shapes: Mapping[str, tuple[int, ...]] | None = None) -> IOBinding:
        """For `run_with_iobinding`: inputs and outputs in memory of the caller's. shapes: of inputs, which
        say which profile is meant, where there are several; InputError if they do not.
        """
        return IOBinding(self._profiles.chosen(shapes or {}).executable)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on what is bound; what is in the bound memory then is read, and outputs are written there.
        Allocates nothing, but for the first calls that run beside another.
        """
        iobinding.valid = {}
        profile = self._profiles.of(iobinding.inputs)
        iobinding.valid = profile.run(iobinding.inputs, iobinding.outputs)

    def _wanted(self, names: Sequence[str] | None) -> Sequence[str]:
        known = self._profiles.outputs
        if isinstance(names, str):
            raise InputError(f"output_names is {names!r}, and not a list of names")
        for name in names or ():
            if name not in known:
                raise InputError(f"the model has no output {name!r}; its outputs: {', '.join(known)}")
        return names or list(known)
