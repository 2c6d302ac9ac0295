"""Patterns and rules that a person adds to installed backends, kept for this process."""

from __future__ import annotations

from collections.abc import Callable

from collage_core.errors import Refusal
from collage_core.patterns import BackendPattern, Match, Pattern
from collage_core.rules import FusionRule, GroupCheck, PatternRule, ValidOp

__all__ = [
    "add_backend_pattern",
    "add_backend_pattern_rule",
    "clear_registered",
    "registered_patterns",
    "registered_rules",
]

_patterns: dict[str, list[BackendPattern]] = {}
_rules: dict[str, list[PatternRule]] = {}


def add_backend_pattern(
    *, backend: str, pattern: Pattern, name: str = "", check: Callable[[Match], Refusal | None] | None = None
) -> BackendPattern:
    """Say that the installed backend `backend` (in any case) can run what `pattern` describes.

    The backend still decides by its `variants` what it really offers. Adding an equal pattern again changes
    nothing. UnknownBackendError lists the installed backends.
    """
    added = BackendPattern(_installed(backend), pattern, name, check)
    known = _patterns.setdefault(added.backend, [])
    if added not in known:
        known.append(added)
    return added


def add_backend_pattern_rule(
    *,
    backend: str,
    valid_ops: ValidOp,
    fusion_rule: FusionRule,
    name: str = "",
    max_nodes: int | None = None,
    check: GroupCheck | None = None,
) -> PatternRule:
    """Say that the installed backend `backend` can fuse what the rule allows; see `PatternRule`.

    UnknownBackendError lists the installed backends.
    """
    added = PatternRule(_installed(backend), valid_ops, fusion_rule, name, max_nodes, check)
    known = _rules.setdefault(added.backend, [])
    if added not in known:
        known.append(added)
    return added


def registered_patterns(backend: str) -> tuple[BackendPattern, ...]:
    """The patterns added for a backend in this process, in that order."""
    return tuple(_patterns.get(backend.lower(), ()))


def registered_rules(backend: str) -> tuple[PatternRule, ...]:
    """The rules added for a backend in this process, in that order."""
    return tuple(_rules.get(backend.lower(), ()))


def clear_registered(backend: str | None = None) -> None:
    """Forget what was added for `backend`, or for all."""
    for registry in (_patterns, _rules):
        if backend is None:
            registry.clear()
        else:
            registry.pop(backend.lower(), None)


def _installed(backend: str) -> str:
    # Imported here because the registry of backends imports the backends' contract, which speaks of patterns.
    from collage_core.plugins import default_registry

    return default_registry().backend(backend).name
