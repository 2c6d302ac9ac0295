"""Patterns as the code that makes them; `eval` of it gives an equal pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

__all__ = ["Printable", "Text", "to_code"]


class Printable(Protocol):
    """What is printed: it contains others, and knows how it is written itself."""

    @property
    def children(self) -> Iterable[Printable]:
        """Those that it is made of, outermost level only."""

    @property
    def constraints(self) -> Iterable[object]:
        """Printed behind it."""

    @property
    def option(self) -> tuple[Printable, Printable] | None:
        """What it may be extended to, and what it is without that; None where it is no option."""

    def walk(self) -> Iterator[Printable]:
        """This one and all that it contains, each object once."""

    def code(self, text: Text) -> str:
        """As it is written, without its constraints. text: of what it is made of."""


Text = Callable[[Printable], str]


def to_code(pattern: Printable) -> str:
    """One expression; what is used again is named: `is_op('add')((p0 := wildcard()), p0)`."""
    return _Printer(pattern).text(pattern)


class _Printer:
    def __init__(self, root: Printable) -> None:
        self._uses = _uses(root)
        self._names: dict[int, str] = {}
        self._named = 0
        self._lambdas = 0

    def text(self, pattern: Printable) -> str:
        if id(pattern) in self._names:
            return self._names[id(pattern)]
        name = f"p{self._named}" if self._uses[id(pattern)] > 1 else ""
        self._named += bool(name)
        option = pattern.option
        if option is not None and self._is_printable(*option):
            body = self._option(pattern, *option)
        else:
            body = pattern.code(self.text)
        body += "".join(map(str, pattern.constraints))
        if not name:
            return body
        self._names[id(pattern)] = name
        return f"({name} := {body})"

    def _option(self, pattern: Printable, extended: Printable, base: Printable) -> str:
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

    def _is_printable(self, extended: Printable, base: Printable) -> bool:
        """Whether the extension's own parts stay inside it: a name given in a lambda ends with it."""
        inside, in_base = _uses(extended), {id(p) for p in base.walk()}
        inside[id(extended)] = 1
        return all(self._uses[id(p)] == inside[id(p)] for p in extended.walk() if id(p) not in in_base)


def _uses(root: Printable) -> Counter[int]:
    return Counter(id(child) for pattern in root.walk() for child in pattern.children)
