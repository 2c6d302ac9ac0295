"""The pattern language: values that describe a part of a graph.

    conv = is_op("conv2d")(wildcard(), is_constant())
    conv_relu = is_op("relu")(conv)

Patterns are frozen, equal and hashed by structure, and print as the code that makes them. *Sharing is part of
the structure*: one pattern object used in two places stands for one operator or value, two objects that look
alike stand for two operators (wildcards may still meet one value). So `x = wildcard(); is_op("add")(x, x)`
matches only the sum of a value with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from collage_core.errors import CollageError
from collage_core.ir import Attribute
from collage_core.ir.aliases import OpName, resolve_op
from collage_core.patterns.constraints import Constraint, HasAttr, HasDtype, HasShape
from collage_core.patterns.printing import Text, to_code

__all__ = [
    "Alternatives",
    "ConstantPattern",
    "Dominator",
    "OpPattern",
    "OutputOf",
    "Outputs",
    "Pattern",
    "Wildcard",
    "dominates",
    "is_constant",
    "is_op",
    "is_tuple",
    "is_tuple_get_item",
    "outputs",
    "wildcard",
]


@dataclass(frozen=True, eq=False, repr=False)
class Pattern:
    """Base of all patterns. `constraints` must hold for the operator or value that it matches."""

    constraints: tuple[Constraint, ...] = field(default=(), kw_only=True)

    def has_attr(self, attributes: Mapping[str, Attribute]) -> Self:
        """Only operators with these attributes; ONNX's and Relay's names serve, defaults count."""
        return self._constrained(HasAttr.of(attributes))

    def has_shape(self, shape: Sequence[int | str | None]) -> Self:
        """Only values of this shape, None for any size; of an operator with several outputs, the first."""
        return self._constrained(HasShape.of(shape))

    def has_dtype(self, dtype: object) -> Self:
        """Only values of this element type (`"float32"`, `np.float32`)."""
        return self._constrained(HasDtype.of(dtype))

    def __or__(self, other: Pattern) -> Alternatives:
        """Either of the two; the left one is tried first."""
        return Alternatives((self, other))

    def optional(self, extend: Callable[[Pattern], Pattern]) -> Alternatives:
        """This pattern, or what `extend` makes of it, which is tried first.

        CollageError if `extend` leaves this pattern out.
        """
        extended = extend(self)
        if not any(p is self for p in extended.walk()):
            raise CollageError(f"optional(): {extended!r} does not contain the pattern that it extends")
        return Alternatives((extended, self), is_optional=True)

    def dominates(self, parent: Pattern, path: Pattern | None = None) -> Dominator:
        """An operator `parent`, then any operators `path`, all of whose results end in this pattern.

        The order of arguments is TVM's: the pattern that ends the part is the one asked,
        `is_op("add")(...).dominates(conv, path)`. `path` is matched anew for each operator: it shares nothing
        with the rest. Wildcards of the path and of the end may stand for values from inside.
        """
        return Dominator(parent, path, self)

    @property
    def children(self) -> tuple[Pattern, ...]:
        """The patterns that this one is made of, outermost level only."""
        return ()

    def walk(self) -> Iterator[Pattern]:
        """This pattern and all that it contains, each object once."""
        seen: dict[int, Pattern] = {}
        stack: list[Pattern] = [self]
        while stack:
            pattern = stack.pop()
            if id(pattern) not in seen:
                seen[id(pattern)] = pattern
                stack.extend(reversed(pattern.children))
        return iter(seen.values())

    @cached_property
    def form(self) -> tuple[object, ...]:
        """The structure as nested tuples, in which a pattern met again is a back-reference."""
        return _form_of(self, {})

    def _constrained(self, constraint: Constraint) -> Self:
        return replace(self, constraints=(*self.constraints, constraint))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Pattern) and self.form == other.form)

    def __hash__(self) -> int:
        return hash(self.form)

    def __repr__(self) -> str:
        return to_code(self)

    @property
    def option(self) -> tuple[Pattern, Pattern] | None:
        """What `optional` extends it to, and what it is without that."""
        return None

    def code(self, text: Text) -> str:
        """As it is written, without its constraints. text: of the patterns that it is made of."""
        raise NotImplementedError(f"{type(self).__name__} has no printed form")


@dataclass(frozen=True, eq=False, repr=False)
class Wildcard(Pattern):
    """Any value. Whatever computes it is not part of the match."""

    def code(self, text: Text) -> str:
        return "wildcard()"


@dataclass(frozen=True, eq=False, repr=False)
class ConstantPattern(Pattern):
    """Any constant of the graph."""

    def code(self, text: Text) -> str:
        return "is_constant()"


@dataclass(frozen=True, eq=False, repr=False)
class OpPattern(Pattern):
    """An operator.

    args: patterns of its first inputs, None where an optional input is not mentioned; `args` None takes any.

    `name` is as written; `meaning` is what it stands for.
    """

    name: str
    domain: str = ""
    args: tuple[Pattern | None, ...] | None = None

    @cached_property
    def meaning(self) -> OpName:
        return resolve_op(self.name, self.domain)

    def __call__(self, *args: Pattern | None) -> OpPattern:
        """The operator applied to these inputs; the others, and None, are free where ONNX has them optional.

        A tuple (`is_tuple`) as the only argument stands for its fields, as Relay's `concatenate` takes its
        operands.
        """
        if self.args is not None:
            raise CollageError(f"{self!r} has its inputs already")
        if len(args) == 1 and isinstance(args[0], Outputs):
            args = args[0].fields
        for arg in args:
            if not isinstance(arg, Pattern | None):
                raise CollageError(f"{self!r}: {arg!r} is no pattern")
            if isinstance(arg, Outputs):
                raise CollageError(f"{self!r}: several outputs cannot be one input")
        return replace(self, args=args)

    @property
    def children(self) -> tuple[Pattern, ...]:
        return tuple(a for a in self.args or () if a is not None)

    def code(self, text: Text) -> str:
        domain = f", {self.domain!r}" if self.domain else ""
        head = f"is_op({self.name!r}{domain})"
        if self.args is None:
            return head
        return f"{head}({', '.join('None' if a is None else text(a) for a in self.args)})"


@dataclass(frozen=True, eq=False, repr=False)
class Alternatives(Pattern):
    """One of several patterns, tried in order."""

    choices: tuple[Pattern, ...]
    is_optional: bool = False

    @property
    def children(self) -> tuple[Pattern, ...]:
        return self.choices

    @property
    def option(self) -> tuple[Pattern, Pattern] | None:
        return (self.choices[0], self.choices[1]) if self.is_optional else None

    def code(self, text: Text) -> str:
        return f"({' | '.join(map(text, self.choices))})"


@dataclass(frozen=True, eq=False, repr=False)
class OutputOf(Pattern):
    """Output `index` of an operator with several; None for any of them."""

    operator: Pattern
    index: int | None = None

    @property
    def children(self) -> tuple[Pattern, ...]:
        return (self.operator,)

    def code(self, text: Text) -> str:
        index = "" if self.index is None else f", {self.index}"
        return f"is_tuple_get_item({text(self.operator)}{index})"


@dataclass(frozen=True, eq=False, repr=False)
class Dominator(Pattern):
    """`end`, `parent`, and all operators between them, each of which `path` describes (any, if None)."""

    parent: Pattern
    path: Pattern | None
    end: Pattern

    @property
    def children(self) -> tuple[Pattern, ...]:
        return tuple(p for p in (self.parent, self.path, self.end) if p is not None)

    def code(self, text: Text) -> str:
        parts = (self.parent, self.path, self.end)
        return f"dominates({', '.join('None' if p is None else text(p) for p in parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class Outputs(Pattern):
    """Several results of one part."""

    fields: tuple[Pattern, ...]

    @property
    def children(self) -> tuple[Pattern, ...]:
        return self.fields

    def code(self, text: Text) -> str:
        return f"outputs({', '.join(map(text, self.fields))})"


def is_op(name: str, domain: str = "") -> OpPattern:
    """An operator: an ONNX type (`Conv`), or an alias (`conv2d`, `nn.dense`, `add`, `relu`).

    Uncalled it takes any inputs; called, `is_op("add")(p, q)`, its inputs must match, in either order where
    the operator is commutative. `domain` names the operator set of operators that are not ONNX's own.
    CollageError if ONNX knows no such operator.
    """
    resolve_op(name, domain)
    return OpPattern(name, domain)


def wildcard() -> Wildcard:
    """Any value; its producer is not part of the match."""
    return Wildcard()


def is_constant() -> ConstantPattern:
    """Any constant (weights, folded values)."""
    return ConstantPattern()


def outputs(*fields: Pattern) -> Outputs:
    """A part with several results, each of which shares a sub-pattern with one before it."""
    if not fields:
        raise CollageError("outputs() needs at least one pattern")
    return Outputs(fields)


def is_tuple(fields: Sequence[Pattern]) -> Outputs:
    """TVM's spelling of `outputs(*fields)`."""
    return outputs(*fields)


def is_tuple_get_item(operator: Pattern, index: int | None = None) -> OutputOf:
    """Output `index` of an operator that has several (`Split`, `TopK`); None for any.

    Elsewhere an operator stands for its first output.
    """
    return OutputOf(operator, index)


def dominates(parent: Pattern, path: Pattern | None, end: Pattern) -> Dominator:
    """`end.dominates(parent, path)`, in the order in which the data flows."""
    return Dominator(parent, path, end)


def _form_of(pattern: Pattern, numbers: dict[int, int]) -> tuple[object, ...]:
    if id(pattern) in numbers:
        return ("again", numbers[id(pattern)])
    numbers[id(pattern)] = len(numbers)
    parts: list[object] = [type(pattern).__name__, pattern.constraints]
    match pattern:
        case OpPattern():
            parts += [pattern.meaning, pattern.args is None]
            parts += [a if a is None else _form_of(a, numbers) for a in pattern.args or ()]
        case OutputOf():
            parts += [pattern.index, _form_of(pattern.operator, numbers)]
        case Dominator():
            parts += [
                _form_of(pattern.parent, numbers),
                None if pattern.path is None else _form_of(pattern.path, numbers),
                _form_of(pattern.end, numbers),
            ]
        case _:
            parts += [_form_of(c, numbers) for c in pattern.children]
    return tuple(parts)
