"""`--shape`: of which shapes of its inputs a model is asked for, or of a bundle which profile is meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from collage_core.errors import CollageError
from collage_core.runtime.profiles import Shapes, require_apart

__all__ = ["add_profile", "add_shape", "profiles_of", "shapes_of"]

_BETWEEN_SIZES = re.compile(r"[,x](?![^{}]*\})")
_BRACES = re.compile(r"\{([^{}]*)\}")
_HEXADECIMAL = re.compile(r"(^|,)0x")
"""What looks like such a number, and would be two sizes."""


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Of a model that is read."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="shape of an input with open dimensions, or DIMENSION=8, the size of one that the model names",
    )


def add_profile(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """Of a bundle. otherwise: what is done where it is not given."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help=f"which profile of a bundle that has several, by the shapes of inputs (default: {otherwise})",
    )


def shapes_of(args: argparse.Namespace, what: str) -> Shapes:
    """By the name of an input or dimension. CollageError where several profiles are asked for: `what` takes
    one.
    """
    profiles = profiles_of(args)
    if len(profiles) > 1:
        raise CollageError(f"--shape: {len(profiles)} profiles are given, and {what} takes one")
    return profiles[0]


def profiles_of(args: argparse.Namespace) -> list[dict[str, tuple[int, ...]]]:
    """The shapes that belong together: the first of each name's, the second, and so on. What has one shape
    has that in all of them.

    CollageError for a shape that is none, for numbers of shapes that do not fit each other, for too many
    profiles, and for the same one twice.
    """
    given: dict[str, list[tuple[int, ...]]] = {}
    for text in args.shape:
        name, equals, shape = text.rpartition("=")
        if not equals or not name or not shape:
            raise CollageError(f"--shape {text}: expected NAME=VALUE")
        given.setdefault(name, []).extend(_alternatives(name, shape))
    counts = {name: len(shapes) for name, shapes in given.items() if len(shapes) > 1}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise CollageError(f"--shape: {told}: give as many shapes of each, or one that is for all")
    profiles = [
        {name: shapes[number if len(shapes) > 1 else 0] for name, shapes in given.items()}
        for number in range(max(counts.values(), default=1))
    ]
    require_apart(profiles)
    return profiles


def _alternatives(name: str, text: str) -> list[tuple[int, ...]]:
    """What braces stand for: the first of each, the second, and so on."""
    sizes = [_sizes(name, text, part) for part in _BETWEEN_SIZES.split(text)]
    counts = {len(several) for several in sizes if several is not None and len(several) > 1}
    if _HEXADECIMAL.search(text):
        raise CollageError(f"--shape {name}={text}: 0x reads as hexadecimal: write 0,4 for the sizes 0 and 4")
    if None in sizes:
        raise CollageError(
            f"--shape {name}={text}: dimensions are whole numbers, as in {name}=1,3,224,224, or several of "
            f"them, as in {name}={{1,8}},3,224,224"
        )
    if len(counts) > 1:
        raise CollageError(f"--shape {name}={text}: braces of one shape list as many sizes each")
    known = [several for several in sizes if several is not None]
    return [
        tuple(several[number if len(several) > 1 else 0] for several in known)
        for number in range(max(counts, default=1))
    ]


def _sizes(name: str, text: str, part: str) -> Sequence[int] | None:
    """One, or those in braces; None for what is neither."""
    braces = _BRACES.fullmatch(part)
    try:
        return [int(size) for size in braces.group(1).split(",")] if braces else [int(part)]
    except ValueError:
        return None
