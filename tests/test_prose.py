"""Markdown for a tired reader: short sentences, short lines. Tables and code may be wider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_MOST_WORDS = 25
_MOST_CHARACTERS = 120

_NOT_PROSE = {
    "docs/operators.md": "tables and notes that benchmarks/operators_table.py writes",
    "docs/results/runs": "records of runs, as the programs printed them",
    "docs/results/sweeps": "tables and conclusions that collage_benchmarks.sweep writes",
}

_GENERATED = (("<!-- evidence", "<!-- conformance"), ("<!-- /evidence -->", "<!-- /conformance -->"))
_FENCE = re.compile(r"\s*(```|~~~)")
_ITEM = re.compile(r"([-*+]|\d+\.) ")
_CODE_SPAN = re.compile(r"(`+).+?\1")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_WORD = re.compile(r"[\w\u2019'/.+-]*\w")
# Between sentences: a mark, what closes with it, a space, and what a sentence can begin with.
_END = re.compile(r"(?<=[.!?:;])[\"*)]*\s+(?=[A-Z\"*(\[\d])")

Line = tuple[int, str]


def _pages(folder: Path = _ROOT) -> Iterator[Path]:
    """All Markdown files but those in folders that git ignores, and those that are not prose."""
    ignored = [n[:-1] for n in (_ROOT / ".gitignore").read_text().split() if n.endswith("/")]
    for path in sorted(folder.iterdir()):
        if path.relative_to(_ROOT).as_posix() in _NOT_PROSE:
            continue
        if path.is_dir() and not any(fnmatch(path.name, name) for name in (".git", *ignored)):
            yield from _pages(path)
        elif path.suffix == ".md":
            yield path


def _prose(text: str) -> Iterator[Line]:
    """Lines with their numbers; those of code, tables and generated blocks are empty."""
    fenced = generated = indented = False
    previous = ""
    for number, line in enumerate(text.splitlines(), 1):
        begins, ends = (line.startswith(mark) for mark in _GENERATED)
        fence = bool(_FENCE.match(line))
        indented = line.startswith("    ") and (indented or not previous.strip())
        generated |= begins
        hidden = generated or fenced or fence or indented or line.startswith("|")
        yield number, "" if hidden else line
        generated &= not ends
        fenced ^= fence
        previous = line


def _paragraphs(text: str) -> Iterator[Line]:
    """Each paragraph and list item, in one piece, with the number of its first line."""
    start, parts = 0, list[str]()
    for number, line in [*_prose(text), (0, "")]:
        content = line.strip().removeprefix("> ")
        item, heading = _ITEM.match(content), content.startswith("#")
        if parts and (item or heading or not content):
            yield start, " ".join(parts)
            parts = []
        if content and not heading:
            start = start if parts else number
            parts.append(content[item.end() :] if item else content)


def _long_sentences(text: str) -> list[str]:
    found = []
    for number, paragraph in _paragraphs(text):
        plain = _LINK.sub(r"\1", _CODE_SPAN.sub("X", paragraph))
        for sentence in _END.split(plain):
            words = len(_WORD.findall(sentence))
            if words > _MOST_WORDS:
                found.append(f"paragraph at line {number}, {words} words: {sentence}")
    return found


def _long_lines(text: str) -> list[str]:
    long = [(number, line) for number, line in _prose(text) if len(line) > _MOST_CHARACTERS]
    return [f"line {number}, {len(line)} characters: {line}" for number, line in long]


@pytest.mark.parametrize("page", list(_pages()), ids=lambda p: p.relative_to(_ROOT).as_posix())
def test_no_sentence_and_no_line_is_long(page: Path) -> None:
    found = _long_sentences(page.read_text()) + _long_lines(page.read_text())
    assert not found, "\n".join([f"{page.relative_to(_ROOT)}: {len(found)} too long", *found])


_WORDS = " ".join(["word"] * 26)
_WIDE = "word " * 30
_FINE = f"""# {_WORDS[:100]}
A [link](https://example.org/{"a/" * 12}) and `{_WORDS[:40]}` are a word each.
{"So " * 20}
{"so " * 5}. {"And " * 20}
- {"An " * 20}
- {"item " * 20}

| {_WIDE} |
|---|

    {_WIDE}

    {_WIDE}

```
{_WIDE}

{_WIDE}
```

<!-- evidence: runs -->
{_WIDE}
<!-- /evidence -->
"""


def test_code_tables_links_and_what_is_generated_do_not_count() -> None:
    assert not _long_sentences(_FINE)
    assert not _long_lines(_FINE)


@pytest.mark.parametrize(
    "text",
    [
        _WORDS,
        f"Short. {_WORDS[0].upper()}{_WORDS[1:]}",
        f"- {_WORDS}",
        f"> {_WORDS}",
        f"{_WORDS[:59]}\n{_WORDS[60:]}",
        f"[{_WORDS}](there).",
        f"```\ncode\n```\n{_WORDS}",
        f"    code\n\n{_WORDS}",
        f"| table |\n{_WORDS}",
        f"<!-- evidence: runs -->\n<!-- /evidence -->\n{_WORDS}",
    ],
)
def test_a_sentence_of_26_words_is_found(text: str) -> None:
    (found,) = _long_sentences(text)
    assert "26 words" in found


@pytest.mark.parametrize("text", ["x" * 121, f"# {'x' * 119}", f"- item\n  {'x' * 119}"])
def test_a_line_of_121_characters_is_found(text: str) -> None:
    (found,) = _long_lines(text)
    assert "121 characters" in found
