"""Patterns as the code that makes them; `eval` of it gives an equal pattern."""

from __future__ import annotations

from collections import Counter

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

__all__ = ["to_code"]


def to_code(pattern: Pattern) -> str:
    """One expression; what is used again is named: `is_op('add')((p0 := wildcard()), p0)`."""
    return _Printer(pattern).text(pattern)


class _Printer:
    def __init__(self, root: Pattern) -> None:
        self._uses = _uses(root)
        self._names: dict[int, str] = {}
        self._named = 0
        self._lambdas = 0

    def text(self, pattern: Pattern) -> str:
        if id(pattern) in self._names:
            return self._names[id(pattern)]
        name = f"p{self._named}" if self._uses[id(pattern)] > 1 else ""
        self._named += bool(name)
        if isinstance(pattern, Alternatives) and self._is_printable_option(pattern):
            body = self._option(pattern)
        else:
            body = self._body(pattern)
        body += "".join(map(str, pattern.constraints))
        if not name:
            return body
        self._names[id(pattern)] = name
        return f"({name} := {body})"

    def _body(self, pattern: Pattern) -> str:
        match pattern:
            case Wildcard():
                return "wildcard()"
            case ConstantPattern():
                return "is_constant()"
            case OpPattern():
                domain = f", {pattern.domain!r}" if pattern.domain else ""
                head = f"is_op({pattern.name!r}{domain})"
                if pattern.args is None:
                    return head
                return f"{head}({', '.join('None' if a is None else self.text(a) for a in pattern.args)})"
            case Alternatives():
                return f"({' | '.join(self.text(c) for c in pattern.choices)})"
            case OutputOf():
                index = "" if pattern.index is None else f", {pattern.index}"
                return f"is_tuple_get_item({self.text(pattern.operator)}{index})"
            case Dominator():
                parts = (pattern.parent, pattern.path, pattern.end)
                return f"dominates({', '.join('None' if p is None else self.text(p) for p in parts)})"
            case Outputs():
                return f"outputs({', '.join(self.text(f) for f in pattern.fields)})"
        raise TypeError(f"{type(pattern).__name__} has no printed form")

    def _option(self, pattern: Alternatives) -> str:
        extended, base = pattern.choices
        # Its uses inside are the lambda's parameter: the base needs a name only for uses elsewhere.
        self._uses[id(base)] -= _uses(pattern)[id(base)] - 1
        head = self.text(base)
        outer = self._names.get(id(base))
        parameter = "x" if self._lambdas == 0 else f"x{self._lambdas}"
        self._lambdas += 1
        self._names[id(base)] = parameter
        text = f"{head}.optional(lambda {parameter}: {self.text(extended)})"
        self._lambdas -= 1
        if outer is None:
            del self._names[id(base)]
        else:
            self._names[id(base)] = outer
        return text

    def _is_printable_option(self, pattern: Alternatives) -> bool:
        """Whether the extension's own parts stay inside it: a name given in a lambda ends with it."""
        if not pattern.is_optional:
            return False
        extended, base = pattern.choices
        inside, in_base = _uses(extended), {id(p) for p in base.walk()}
        inside[id(extended)] = 1
        return all(self._uses[id(p)] == inside[id(p)] for p in extended.walk() if id(p) not in in_base)


def _uses(root: Pattern) -> Counter[int]:
    return Counter(id(child) for pattern in root.walk() for child in pattern.children)
