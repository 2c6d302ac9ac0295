"""From object files to an image: a linker for the little that LLVM writes for loop nests on x86-64.

Such objects refer to places and functions in few ways, and have no data that they change (System V ABI, AMD64
supplement, section 4.4). Whatever else turns up is refused, with its name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collage_run.image import Image

__all__ = ["LinkError", "link"]

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_RELOCATABLE, _X86_64 = 1, 62
_HEADER = struct.Struct("<16xHH20xQ10xHHH")
"""Kind and machine; where the section headers lie; their size, number, and which of them has their names."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_PROGBITS, _SYMBOLS, _RELOCATIONS, _NOTE, _NOBITS, _UNWINDING = 1, 2, 4, 7, 8, 0x70000001
_WRITE, _ALLOC, _THREAD_LOCAL = 1, 2, 0x400
_UNDEFINED = 0
_LOCAL = 0
_FOR_UNWINDING = ".eh_frame"
_MADE_READ_ONLY = ".data.rel.ro"

_ABSOLUTE_64, _RELATIVE_32, _CALL_32, _RELATIVE_64 = 1, 2, 4, 24
_BY_TABLE_32 = (9, 41, 42)

_PAGE_BYTES = 4096
_ADDRESS_BYTES = 8
_JUMP = b"\xff\x25"
"""To the address that lies as far behind it as the next four bytes say."""
_JUMP_BYTES = 6


class LinkError(Exception):
    """An object has something that this linker does not know."""


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size_bytes: int
    linked: int
    about: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    binding: int
    section: int
    value: int


class _Object:
    """What an object file says, its sections' places in the image included."""

    def __init__(self, data: bytes) -> None:
        """LinkError unless it is a relocatable one for x86-64."""
        if not data.startswith(_ELF64_LITTLE):
            raise LinkError("it is no ELF file of 64 bits")
        kind, machine, offset, size_bytes, count, names = _HEADER.unpack_from(data)
        if (kind, machine) != (_RELOCATABLE, _X86_64):
            raise LinkError(f"it is of kind {kind}, for machine {machine}: no object file for x86-64")
        headers = [_SECTION.unpack_from(data, offset + i * size_bytes) for i in range(count)]
        texts = headers[names][4]
        self.data = data
        self.sections = [
            _Section(_text(data, texts + name), kind, flags, at, size, linked, about, alignment)
            for name, kind, flags, _, at, size, linked, about, alignment, _ in headers
        ]
        self.symbols: list[_Symbol] = []
        for section in self.sections:
            if section.kind == _SYMBOLS:
                texts = self.sections[section.linked].offset
                for name, info, _, index, value, _ in _SYMBOL.iter_unpack(self.content(section)):
                    self.symbols.append(_Symbol(_text(data, texts + name), info >> 4, index, value))
        self.places: dict[int, int] = {}

    def content(self, section: _Section) -> bytes:
        if section.kind == _NOBITS:
            return bytes(section.size_bytes)
        return self.data[section.offset : section.offset + section.size_bytes]

    def loaded(self) -> Iterator[tuple[int, _Section]]:
        """Those that belong into memory, with their numbers. Nothing here throws exceptions."""
        for i, section in enumerate(self.sections):
            if not section.flags & _ALLOC or section.kind in (_NOTE, _UNWINDING) or not section.size_bytes:
                continue
            if section.kind not in (_PROGBITS, _NOBITS) or section.flags & _THREAD_LOCAL:
                raise LinkError(f"it has a section {section.name} of kind {section.kind}")
            if section.size_bytes > len(self.data) or section.alignment > _PAGE_BYTES:
                raise LinkError(f"its section {section.name} is larger than it is")
            if section.name != _FOR_UNWINDING:
                yield i, section

    def relocations(self) -> Iterator[tuple[int, int, _Symbol, int]]:
        """Of what is in memory: at which offset, of which kind, to what, how far behind it."""
        for section in self.sections:
            if section.kind == _RELOCATIONS and section.about in self.places:
                for at, info, addend in _RELOCATION.iter_unpack(self.content(section)):
                    symbol = self.symbols[info >> 32]
                    yield self.places[section.about] + at, info & 0xFFFFFFFF, symbol, addend


@dataclass
class _Linking:
    objects: Sequence[_Object]
    code: bytearray = field(default_factory=bytearray)
    known: dict[str, int] = field(default_factory=dict)
    addresses: dict[int, str | int] = field(default_factory=dict)
    table: dict[str | int, int] = field(default_factory=dict)
    jumps: dict[str, int] = field(default_factory=dict)

    def lay_out(self, filled: Mapping[str, str]) -> None:
        for object in self.objects:
            for i, section in object.loaded():
                if section.flags & _WRITE and not section.name.startswith(_MADE_READ_ONLY):
                    within = [s.name for s in object.symbols if s.section == i and s.name]
                    if not within or not set(within) <= filled.keys():
                        raise LinkError(f"it has data that it may change: {section.name} of {within}")
                object.places[i] = self._append(object.content(section), section.alignment)
            for symbol in object.symbols:
                if symbol.binding != _LOCAL and symbol.section in object.places:
                    self.known.setdefault(symbol.name, object.places[symbol.section] + symbol.value)

    def resolve(self) -> None:
        for object in self.objects:
            for place, kind, symbol, addend in object.relocations():
                self._refer(place, kind, self._target(object, symbol), addend)

    def _target(self, object: _Object, symbol: _Symbol) -> str | int:
        """A place in the image, or the name of a function of a library."""
        if symbol.section in object.places:
            own = object.places[symbol.section] + symbol.value
            return own if symbol.binding == _LOCAL else self.known[symbol.name]
        if symbol.section != _UNDEFINED or not symbol.name:
            raise LinkError(f"it refers to {symbol.name or 'a section'}, which is not in memory")
        return self.known.get(symbol.name, symbol.name)

    def _refer(self, place: int, kind: int, target: str | int, addend: int) -> None:
        if kind == _ABSOLUTE_64 and (isinstance(target, int) or not addend):
            self.addresses[place] = target + addend if isinstance(target, int) else target
        elif kind in (_RELATIVE_32, _CALL_32) and isinstance(target, int):
            self._put(place, target + addend - place)
        elif kind == _CALL_32 and isinstance(target, str):
            self._put(place, self._jump_to(target) + addend - place)
        elif kind in _BY_TABLE_32:
            self._put(place, self._entry_of(target) + addend - place)
        elif kind == _RELATIVE_64 and isinstance(target, int):
            struct.pack_into("<q", self.code, place, target + addend - place)
        else:
            raise LinkError(f"it has a reference of kind {kind} to {target}")

    def _entry_of(self, target: str | int) -> int:
        """Where the address of `target` will lie."""
        if target not in self.table:
            self.table[target] = self._append(bytes(_ADDRESS_BYTES), _ADDRESS_BYTES)
            self.addresses[self.table[target]] = target
        return self.table[target]

    def _jump_to(self, name: str) -> int:
        if name not in self.jumps:
            entry = self._entry_of(name)
            place = self._append(_JUMP + bytes(_JUMP_BYTES - len(_JUMP)), _ADDRESS_BYTES)
            self._put(place + len(_JUMP), entry - (place + _JUMP_BYTES))
            self.jumps[name] = place
        return self.jumps[name]

    def _append(self, content: bytes, alignment: int) -> int:
        self.code += bytes(-len(self.code) % max(alignment, 1))
        place = len(self.code)
        self.code += content
        return place

    def _put(self, place: int, distance: int) -> None:
        struct.pack_into("<i", self.code, place, distance)


def link(objects: Sequence[bytes], entry: str, parameters: int, filled: Mapping[str, str]) -> Image:
    """An image whose function is `entry`, which takes so many pointers. filled: variables of the objects (8
    bytes each) that hold the address of a function of theirs. LinkError for what is not known here.
    """
    try:
        linking = _Linking([_Object(data) for data in objects])
        linking.lay_out(filled)
        linking.resolve()
        for variable, function in filled.items():
            if variable in linking.known:
                linking.addresses[linking.known[variable]] = linking.known[function]
        addresses = tuple(sorted(linking.addresses.items()))
        return Image(bytes(linking.code), linking.known[entry], parameters, addresses)
    except (IndexError, ValueError, struct.error) as error:
        raise LinkError(f"it is cut short ({error})") from None
    except KeyError as error:
        raise LinkError(f"it has no {error}") from None


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()
