"""Bundles edited by somebody who knows what they are made of: the sums are right, what they sum up is not."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from model_edits import change_message, change_model
from odd_values import INTEGERS, TEXTS

__all__ = ["edited", "members_of", "packed"]

_NAMES = ("manifest.json", "placement.json", "singles.json", "model.onnx", "weights.bin")


def edited(data: bytes, seed: int) -> bytes:
    """A variant of the bundle `data`: one to three edits of one of its members or of its directory."""
    chance = random.Random(seed)
    edits = [_placement, _placement, _schedule, _schedule, _model, _model, _manifest, _archive, _singles]
    edit = chance.choice(edits)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in _NAMES}
    return edit(members, chance)


Members = dict[str, bytes]


def members_of(path: Path) -> Members:
    """All files of an archive."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members: Members) -> bytes:
    """An archive of these, whose own sums are right."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


def _times(chance: random.Random) -> range:
    return range(chance.choice([1, 1, 1, 2, 3]))


def _placement(members: Members, chance: random.Random) -> bytes:
    placement = json.loads(members["placement.json"])
    for _ in _times(chance):
        chance.choice([_change_json, _change_json, _change_group])(placement, chance)
    return packed({**members, "placement.json": json.dumps(placement).encode()})


def _singles(members: Members, chance: random.Random) -> bytes:
    singles = json.loads(members["singles.json"])
    for _ in _times(chance):
        _change_json(singles, chance)
    return packed({**members, "singles.json": json.dumps(singles).encode()})


def _manifest(members: Members, chance: random.Random) -> bytes:
    manifest = json.loads(members["manifest.json"])
    for _ in _times(chance):
        _change_json(manifest, chance)
    return packed({**members, "manifest.json": json.dumps(manifest).encode()})


def _schedule(members: Members, chance: random.Random) -> bytes:
    """An edit of a tuned schedule inside a placement."""
    placement = json.loads(members["placement.json"])
    for group in placement["groups"]:
        if "tuned" in group["options"]:
            tuned = zlib.decompress(base64.b64decode(group["options"]["tuned"]))
            workload, trace = json.loads(tuned)
            for _ in _times(chance):
                chance.choice([_change_json, _change_instruction])(trace, chance)
            text = json.dumps([workload, trace]).encode()
            if chance.random() < 0.05:
                text = text[:-1] + b" " * (1 << 24) + text[-1:]  # small when it is packed
            group["options"]["tuned"] = base64.b64encode(zlib.compress(text)).decode()
    return packed({**members, "placement.json": json.dumps(placement).encode()})


def _change_json(data: Any, chance: random.Random) -> None:
    """One value somewhere inside becomes another, is doubled, swapped, or removed."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in range(len(node)) if isinstance(node, list) else node if isinstance(node, dict) else ():
            places.append((node, key))
            walk(node[key])

    walk(data)
    if not places:
        return
    node, key = chance.choice(places)
    other, at = chance.choice(places)
    kind = chance.choice(["value", "value", "value", "other", "remove", "double", "swap"])
    if kind == "value":
        node[key] = _json_value(chance, node[key])
    elif kind == "other":
        node[key] = json.loads(json.dumps(other[at]))
    elif kind == "remove":
        del node[key]
    elif kind == "double" and isinstance(node, list):
        node.insert(key, json.loads(json.dumps(node[key])))
    elif isinstance(node, list):
        swapped = chance.randrange(len(node))
        node[key], node[swapped] = node[swapped], node[key]


def _json_value(chance: random.Random, now: Any) -> Any:
    if isinstance(now, int) and not isinstance(now, bool) and chance.random() < 0.6:
        return chance.choice([*INTEGERS, now + 1, now - 1, 2 * now, -now])
    if isinstance(now, str) and chance.random() < 0.6:
        return chance.choice([*TEXTS, now + "x", now[1:], now.upper()])
    deep: Any = 0
    for _ in range(200):
        deep = [deep]
    others = [None, True, -1, 2**70, 1.5, float("nan"), float("inf"), "", "text", [], {}, [0] * 100, deep]
    return chance.choice(others)


def _change_group(placement: Any, chance: random.Random) -> None:
    """An edit that leaves every value of its type."""
    groups = placement["groups"]
    if not isinstance(groups, list) or not groups or not all(isinstance(g, dict) for g in groups):
        return
    group, other = chance.choice(groups), chance.choice(groups)
    formats = [f for side in ("inputs", "outputs") for f in group.get(side) or [] if isinstance(f, dict)]

    def merge() -> None:
        group["nodes"] = [*(group.get("nodes") or []), *(other.get("nodes") or [])]
        group["inputs"], group["outputs"] = other.get("inputs"), other.get("outputs")

    def convert() -> None:
        if formats:
            source, name = (
                chance.choice(formats),
                chance.choice(["tvm", "dnnl", "reference", "mkl", "nobody"]),
            )
            value = chance.choice(["x", "v0", "v1", "v2", "o", "w0"])
            conversion = {"value": value, "from": source, "to": {**source, "dtype": "float64"}}
            placement["conversions"] = [{**conversion, "backend": name}]

    def layouts() -> None:
        for f in formats:
            if isinstance(f.get("layout"), list):
                f["layout"] = chance.sample(range(len(f["layout"])), len(f["layout"]))

    edits: list[Callable[[], object]] = [
        merge,
        convert,
        layouts,
        lambda: chance.shuffle(groups),
        lambda: group.update(backend=other.get("backend")),
        lambda: group.update(options=other.get("options")),
        lambda: group.update(options={chance.choice(TEXTS): chance.choice(TEXTS)}),
        lambda: group.update(options={"winograd": chance.choice(["63", "1", "-5", "x"]), "strip": "9999999"}),
        lambda: group.update(options={"waiting": chance.choice(TEXTS)}),
        lambda: group.update(inputs=other.get("inputs"), outputs=other.get("outputs")),
        lambda: placement.update(threads=chance.choice([-1, 0, 1, 2, 10**4, 2**62])),
    ]
    chance.choice(edits)()


def _change_instruction(trace: Any, chance: random.Random) -> None:
    """An edit that leaves instructions which look like some."""
    instructions = trace[0]
    if not isinstance(instructions, list) or len(instructions) < 2:
        return
    sound = [i for i in instructions if isinstance(i, list) and len(i) == 4 and isinstance(i[1], list)]
    if not sound:
        return
    one, two = chance.choice(sound), chance.choice(sound)
    blocks = [i[3][0] for i in sound if i[0] in ("GetSBlock", "CacheRead") and i[3]] or ["b0"]
    names = [n for i in sound if isinstance(i[3], list) for n in i[3]] or ["b0"]
    marks = [
        "pragma_import_llvm",
        "pragma_import_c",
        "pragma_auto_unroll_max_step",
        "software_pipeline_stage",
    ]
    marks += [
        "meta_schedule.layout_rewrite_preproc",
        "meta_schedule.auto_tensorize",
        "pragma_unroll_explicit",
    ]
    place, name = chance.choice(names), chance.choice(names)
    added: list[Any] = [
        ["Annotate", [place, chance.choice([1, 512, 10**9, '"text"', name])], [chance.choice(marks)], []],
        ["Vectorize", [place], [], []],
        ["Parallel", [place], [], []],
        ["Unroll", [place], [], []],
        ["Bind", [place], ["threadIdx.x"], []],
        ["Tensorize", [place, '"dot_4x4"'], [1], []],
        ["ComputeInline", [place], [], []],
        ["ComputeAt", [chance.choice(blocks), place], [1, -1], []],
        ["ReverseComputeAt", [chance.choice(blocks), place], [1, -1], []],
        ["CacheRead", [chance.choice(blocks), []], [chance.randint(0, 3), "global"], ["b900"]],
        ["CacheWrite", [chance.choice(blocks), []], [0, "global"], ["b901"]],
        ["Split", [place, chance.choice([2, 3, 10**9]), chance.choice([2, 5])], [1, 1], ["l900", "l901"]],
        ["Split", [place, chance.choice([2, 3, 10**9]), "None"], [1, 0], ["l902", "l903"]],
        ["RFactor", [place], [chance.choice([0, 1, 5])], ["b902"]],
        ["SetScope", [place], [0, '"local"'], []],
        ["DecomposeReduction", [chance.choice(blocks), place], [], ["b903"]],
        ["UnsafeSetDType", [place], [0, '"int8"'], []],
    ]
    at = chance.randrange(len(instructions))
    edits: list[Callable[[], object]] = [
        lambda: instructions.insert(at, chance.choice(added)),
        lambda: instructions.append(chance.choice(added)),
        lambda: instructions.pop(at),
        lambda: one.__setitem__(1, two[1]),
        lambda: one.__setitem__(0, two[0]),
        lambda: one[1].__setitem__(slice(0, 1), [chance.choice(names)]),
        lambda: chance.shuffle(one[1]),
        lambda: instructions.extend(instructions * 20),
        lambda: chance.shuffle(trace[1]),
    ]
    chance.choice(edits)()


def _model(members: Members, chance: random.Random) -> bytes:
    model = onnx.load_from_string(members["model.onnx"])
    for _ in _times(chance):
        chance.choice([change_message, change_model])(model, chance)
    return packed({**members, "model.onnx": model.SerializeToString()})


def _archive(members: Members, chance: random.Random) -> bytes:
    """An edit of the archive's directory, or further members."""
    if chance.random() < 0.3:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
            names = [
                "../outside",
                "/tmp/outside",
                "..\\outside",
                "manifest.json/../../x",
                "a" * 60000,
                "weights",
            ]
            for name, data in members.items():
                archive.writestr(name, data)
            archive.writestr(chance.choice(names), b"x" * 100)
        return made.getvalue()
    whole = bytearray(packed(members))
    for _ in _times(chance):
        signature, first, last = chance.choice([(b"PK\1\2", 4, 46), (b"PK\3\4", 4, 30), (b"PK\5\6", 4, 22)])
        starts = [i for i in range(len(whole) - 3) if whole[i : i + 4] == signature]
        start = chance.choice(starts)
        at = start + chance.randrange(first, last - 3)
        now = struct.unpack_from("<I", whole, at)[0]
        values = [0, 1, now + 1, now - 1, 2**31, 2**32 - 1, len(whole), chance.randrange(2**32)]
        struct.pack_into("<I", whole, at, chance.choice(values) % 2**32)
    return bytes(whole)
