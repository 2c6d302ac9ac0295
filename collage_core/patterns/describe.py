"""What can be told of a pattern without a graph."""

from __future__ import annotations

from collage_core.patterns.pattern import (
    Alternatives,
    ConstantPattern,
    Dominator,
    OpPattern,
    OutputOf,
    Outputs,
    Pattern,
    Wildcard,
)

__all__ = ["head", "height", "root_types"]


def root_types(pattern: Pattern) -> frozenset[tuple[str, str]] | None:
    """(type, domain) of the operators at which `pattern` may have its root; None if that is open."""
    match pattern:
        case OpPattern():
            return frozenset((t, pattern.domain) for t in pattern.meaning.op_types)
        case Alternatives():
            sets = [root_types(c) for c in pattern.choices]
            return None if None in sets else frozenset(t for s in sets if s is not None for t in s)
        case OutputOf():
            return root_types(pattern.operator)
        case Dominator():
            return root_types(pattern.end)
        case Outputs():
            return root_types(pattern.fields[0])
        case _:
            return frozenset()


def height(pattern: Pattern) -> int:
    """Upper bound of the number of operators on a way from a leaf of `pattern` to its root."""
    if isinstance(pattern, Dominator):
        return 1 << 30
    own = 1 if isinstance(pattern, OpPattern) else 0
    return min(own + max((height(c) for c in pattern.children), default=0), 1 << 30)


def head(pattern: Pattern) -> str:
    """The pattern without its inputs: enough to say what was expected."""
    match pattern:
        case OpPattern():
            text = pattern.name
        case Wildcard():
            text = "any value"
        case ConstantPattern():
            text = "a constant"
        case Alternatives():
            text = " or ".join(head(c) for c in pattern.choices)
        case OutputOf():
            text = f"output {'any' if pattern.index is None else pattern.index} of {head(pattern.operator)}"
        case Dominator():
            text = f"{head(pattern.end)} after {head(pattern.parent)}"
        case _:
            text = " and ".join(head(c) for c in pattern.children)
    return text + "".join(map(str, pattern.constraints))
