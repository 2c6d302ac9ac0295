"""What answers a session's requests, until another placement takes its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from collage_core.background.agreeing import Answering, refusal
from collage_core.background.opening import opened
from collage_core.formats import Array
from collage_core.runtime import Executable
from collage_core.runtime.threads import OwnThreads

__all__ = ["Answers"]


class Answers:
    """Begins with an executable, or with none, and has the fastest that was found.

    make: what serves with an executable, run in these threads. All run in the same ones: those of the one
    before would count against the next one's. digest: of the executable's placement.
    """

    def __init__(
        self,
        make: Callable[[Executable, OwnThreads], Answering],
        threads: OwnThreads,
        executable: Executable | None = None,
        digest: str | None = None,
    ) -> None:
        self._make = make
        self._threads: OwnThreads | None = threads
        self._now = None if executable is None else make(executable, threads)
        self._asked: dict[str, Array] | None = None
        """The inputs of the first request that what answers now was given."""
        self.digest = digest
        """Of the placement that answers."""

    @property
    def has_begun(self) -> bool:
        """Whether anything answers yet."""
        return self._now is not None

    @property
    def now(self) -> Answering:
        """What answers."""
        assert self._now is not None  # before the session's constructor is through
        return self._now

    @property
    def is_own_thread(self) -> bool:
        """Whether this thread is one of those that run kernels."""
        return self._threads is not None and self._threads.is_one

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """A request, whose inputs what is found later may be held to."""
        valid = self.now.run(inputs, outputs)
        if self._asked is None:
            self._asked = {name: np.array(array) for name, array in inputs.items()}
        return valid

    def take_over(self, found: Mapping[str, Any], between: Callable[[], None]) -> str | None:
        """Open what was found, and let it answer from now on; why it does not, None where it does. Where a
        library raises something, so does this, and what answers stays. between: called between slices.
        """
        bundle, executable = opened(found["path"], between, found["digest"])
        between()
        assert self._threads is not None  # until whoever opens has been waited for
        answering = self._make(executable, self._threads)
        try:
            between()
            reason = refusal(bundle, answering, self._now, self._asked, between)
        except BaseException:
            answering.close()
            raise
        left: Answering | None = answering
        if reason is None:
            left, self._now, self._asked = self._now, answering, None
            self.digest = found["digest"]
        if left is not None:
            left.close()
        return reason

    def close(self) -> None:
        """Let go of kernels, buffers and threads."""
        self._threads = None
        if self._now is not None:
            self._now.close()
