"""What prepared models of the same backends share: one worker, which has all their libraries loaded."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache

from collage_core.backend import Backend, BackendKind
from collage_core.device import Target
from collage_core.onnx_backend.servant import Servant
from collage_core.plugins import default_registry

__all__ = ["Home", "close_homes", "home_of"]


class Home:
    """backends: by name, the first preferred; core's reference among them. kinds: what they are. servant:
    their worker.
    """

    def __init__(self, backends: Mapping[str, Backend], target: Target) -> None:
        self.backends = backends
        self.kinds = {name: b.info().kind for name, b in backends.items()}
        self.target = target
        self.servant = Servant({k: v for b in backends.values() for k, v in b.environment(target).items()})
        self._numbers = itertools.count()
        self._dropped: deque[int] = deque()

    def number(self) -> int:
        """A number that no executable of the worker has had."""
        return next(self._numbers)

    def drop(self, number: int) -> None:
        """The worker may let go of this executable, when it is next asked for something."""
        self._dropped.append(number)

    def dropped(self) -> list[int]:
        """What may go, told once."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]


def home_of(names: Sequence[str] | None, target: Target) -> Home:
    """The home of these backends (all that are available, where None), and of core's reference.

    UnknownBackendError or BackendError for one that is not there.
    """
    return _home(None if names is None else tuple(names), target)


def close_homes(names: Sequence[str] | None) -> None:
    """End the workers of all homes of these backends."""
    wanted = None if names is None else tuple(names)
    for given, home in _made:
        if given == wanted:
            home.servant.close()


_made: list[tuple[tuple[str, ...] | None, Home]] = []


@cache
def _home(names: tuple[str, ...] | None, target: Target) -> Home:
    registry = default_registry()
    chosen = {b.name: b for b in registry.available(names)}
    fallback = next(b for b in registry.backends.values() if b.info().kind is BackendKind.REFERENCE)
    chosen.setdefault(fallback.name, fallback)
    home = Home(chosen, target)
    _made.append((names, home))
    return home
