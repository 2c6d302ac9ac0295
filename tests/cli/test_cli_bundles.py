"""Bundles that are damaged, of another time, or of another machine."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from mixed_bundle import save_mixed
from weighted_bundle import bundle_of, weighted_graph

from collage_core import Bundle, BundleError, CollageError, load, save
from collage_core.cli.main import main
from collage_core.runtime import read
from collage_core.target import processor

if TYPE_CHECKING:
    from collage_command import Collage, Optimised

    from tests.cli.conftest import Mistake, Refused

_FUZZED = Path(__file__).parents[1] / "support" / "fuzzed_files.py"


def _edited(source: Path, entry: str, edit: Callable[[bytes], bytes | None], compression: int = 0) -> Path:
    """A copy of the bundle in which one entry is another, or is not, with sums that are right."""
    path = source.with_name("edited.collage")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", compression) as new:
        for name in old.namelist():
            data = old.read(name) if name != entry else edit(old.read(name))
            if data is not None:
                new.writestr(name, data)
    return path


def _manifest(source: Path, **changes: Any) -> Path:
    return _edited(source, "manifest.json", lambda data: json.dumps({**json.loads(data), **changes}).encode())


def _both(path: Path, refused: Mistake, said: str) -> None:
    _both_of(path, path, refused, said)


def _both_of(path: Path, bundle: Path, refused: Mistake, said: str) -> None:
    """Refused by `collage run` and by `load`, in the same words; the input lies beside `bundle`."""
    line = refused("run", path, "--input", f"x={bundle.parent}/x.npy")
    assert said in line
    assert str(path) in line
    with pytest.raises(BundleError) as caught:
        load(path)
    assert f"collage: {caught.value}" == line


def test_a_newer_format(bundle: Path, refused: Refused) -> None:
    _both(_manifest(bundle, version=3), refused, "bundle of format 3; this release reads formats up to 2")


def test_a_backend_that_is_not_here(bundle: Path, refused: Refused) -> None:
    path = bundle.with_name("other.collage")
    save(bundle_of(weighted_graph(), "abacus"), path)
    _both(path, refused, "its backend 'abacus' is not installed here; installed: ")


def test_a_processor_that_is_not_here(bundle: Path, refused: Refused) -> None:
    made_on = {"model": "Abacus 9000", "instructions": ["avx9000", *processor().instructions]}
    path = _manifest(bundle, origin={"processor": made_on})
    _both(path, refused, "made for Abacus 9000; this processor (")
    _both(path, refused, ") has no avx9000: optimize the model here")


def test_another_processor_or_version_is_told(bundle: Path, collage: Collage) -> None:
    origin = {
        "processor": {"model": "Abacus 9000", "instructions": list(processor().instructions[:1])},
        "backends": {"reference": {"plugin": "0.0.1", "library": "0.1"}},
    }
    path = _manifest(bundle, origin=origin)
    process = collage.start("run", path, "--input", f"x={collage.folder}/x.npy")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "y" in out
    assert err.count("note: ") == 3
    assert f"{path}: measured with reference (plugin) 0.0.1; here it is" in err
    assert f"{path}: measured with reference (library) 0.1; here it is {onnx.__version__}" in err
    assert f"{path}: measured on Abacus 9000; here it is {processor().model}" in err
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load(path)
    assert [f"collage: note: {w.message}" for w in told] == err.splitlines()


def test_where_it_was_made_stays_with_it(bundle: Path) -> None:
    path = _manifest(bundle, origin={"processor": {"model": "Abacus 9000", "instructions": []}})
    again = bundle.with_name("again.collage")
    save(read(path), again)
    assert read(again).origin == read(path).origin
    assert read(bundle).origin["processor"]["model"] == processor().model
    assert read(bundle).origin["backends"]["reference"]["library"] == onnx.__version__


@pytest.mark.parametrize("entry", ["manifest.json", "placement.json", "model.onnx", "weights.bin"])
def test_a_changed_member(entry: str, bundle: Path, mistake: Mistake) -> None:
    with zipfile.ZipFile(bundle) as archive:
        info = archive.getinfo(entry)
    data = bytearray(bundle.read_bytes())
    data[info.header_offset + 30 + len(entry) + (20 if entry == "weights.bin" else 0) + 5] ^= 1
    path = bundle.with_name("changed.collage")
    path.write_bytes(data)
    _both(path, mistake, "not a bundle, or a damaged one (Bad CRC-32 for file")


@pytest.mark.parametrize("entry", ["manifest.json", "placement.json", "model.onnx", "weights.bin"])
def test_a_missing_member(entry: str, bundle: Path, mistake: Mistake) -> None:
    _both(_edited(bundle, entry, lambda data: None), mistake, "not a bundle, or a damaged one")


def test_other_damage(bundle: Path, mistake: Mistake) -> None:
    whole = bundle.read_bytes()
    path = bundle.with_name("damaged.collage")
    for data in (b"", b"junk", whole[: len(whole) // 2], whole[:-1], whole[200:]):
        path.write_bytes(data)
        _both(path, mistake, "not a bundle, or a damaged one")
    short = _edited(bundle, "weights.bin", lambda data: data[:-2000])
    _both(short, mistake, "constant 'w': external data file")
    packed = _edited(bundle, "", lambda data: data, zipfile.ZIP_DEFLATED)
    _both(packed, mistake, "is compressed")


@pytest.mark.parametrize("entry", ["manifest.json", "placement.json", "model.onnx", "weights.bin"])
def test_what_would_unpack_to_more_than_it_takes_is_refused_unread(
    entry: str, bundle: Path, mistake: Mistake, tmp_path: Path
) -> None:
    """A megabyte of zeros compressed becomes a gigabyte; sizes that are stated may be wrong."""
    path = tmp_path / "bomb.collage"
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = bytes(1 << 26) if name == entry else old.read(name)
            new.writestr(name, data, zipfile.ZIP_DEFLATED if name == entry else zipfile.ZIP_STORED)
    assert path.stat().st_size < 1 << 20
    _both_of(path, bundle, mistake, f"{entry} is compressed")
    lying = bytearray(bundle.read_bytes())
    with zipfile.ZipFile(bundle) as archive:
        size = archive.getinfo(entry).file_size
    at = lying.rindex(entry.encode()) - 22  # in the central directory: compressed, then uncompressed size
    assert struct.unpack_from("<II", lying, at - 4) == (size, size)
    for stated in ((size, 1 << 30), (1 << 30, 1 << 30)):
        struct.pack_into("<II", lying, at - 4, *stated)
        path.write_bytes(lying)
        _both_of(path, bundle, mistake, f"{entry} is said to have {1 << 30} bytes")


def test_json_is_not_read_beyond_a_limit(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage_core.runtime.bundle._MOST_JSON_BYTES", 10)
    with pytest.raises(BundleError, match="json is said to have"):
        read(bundle)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "1"},
        {"version": None},
        {"report": 5},
        {"origin": 5},
        {"origin": {"processor": 5}},
        {"origin": {"backends": {"reference": 5}}},
        {"origin": {"processor": {"instructions": 5}}},
        {"format": "something"},
    ],
)
def test_manifests_that_make_no_sense(changes: dict[str, Any], bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"not a bundle|damaged"):
        load(_manifest(bundle, **changes))


@pytest.mark.parametrize("report", [{"search": 5, "groups": 5}, {"search": {}}])
def test_reports_that_make_no_sense(bundle: Path, refused: Refused, report: dict[str, Any]) -> None:
    assert "its report is damaged" in refused("explain", _manifest(bundle, report=report))


@pytest.mark.parametrize("report", [{"groups": []}, {"groups": [], "conversions": [{}]}])
def test_a_report_of_another_placement(
    bundle: Path, capsys: pytest.CaptureFixture[str], report: dict[str, Any]
) -> None:
    assert main(["explain", str(_manifest(bundle, report=report))]) == 0
    told = capsys.readouterr().out
    assert told.startswith("this placement is not the one that the bundle's report is about")
    assert "groups in order" in told
    assert "predicted" not in told, "no constant is known of it"


@pytest.mark.slow
def test_a_report_of_before_steps_were_timed_in_place(
    optimised: Optimised, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.collage"
    old.write_bytes(optimised.bundle.read_bytes())
    report = {k: v for k, v in optimised.second.items() if k != "prediction"}
    for kind in ("groups", "conversions"):
        report[kind] = [{k: v for k, v in part.items() if k != "in_place_ms"} for part in report[kind]]
    assert main(["explain", str(_manifest(old, report=report))]) == 0
    assert "groups in order" in capsys.readouterr().out


_BREAKS: list[Callable[[dict[str, Any]], object]] = [
    lambda p: p.update(version=9),
    lambda p: p.update(threads="two"),
    lambda p: p.update(threads=0),
    lambda p: p.update(threads=10**6),
    lambda p: p.update(threads=True),
    lambda p: p.update(optimal="yes"),
    lambda p: p.update(terms_ms={"kernels": "many"}),
    lambda p: p["groups"][0].update(backend=["reference"]),
    lambda p: p["groups"][0].update(nodes=[0.0]),
    lambda p: p["groups"][0].update(nodes=[-1]),
    lambda p: p["groups"][0].update(options={"tuned": 5}),
    lambda p: p["groups"][0].update(options={"tuned": "unheard of"}),
    lambda p: p["groups"][0].update(cost_ms="free"),
    lambda p: p.update(device="abacus"),
    lambda p: p.update(groups=5),
    lambda p: p["groups"].pop(),
    lambda p: p["groups"].reverse(),
    lambda p: p["groups"][0].update(nodes=[77]),
    lambda p: p["groups"][0].update(nodes="ab"),
    lambda p: p["groups"][0].update(options=5),
    lambda p: p["groups"][0].update(inputs=[]),
    lambda p: p["groups"][0]["inputs"][0].update(dtype="nothing"),
    lambda p: p["groups"][0]["inputs"][0].update(layout=[9, 9]),
    lambda p: p["conversions"].append({"value": "nowhere"}),
]


@pytest.mark.parametrize("number", range(len(_BREAKS)))
def test_placements_that_make_no_sense(number: int, bundle: Path) -> None:
    def edit(data: bytes) -> bytes:
        placement = json.loads(data)
        _BREAKS[number](placement)
        return json.dumps(placement).encode()

    with pytest.raises(CollageError) as caught:
        load(_edited(bundle, "placement.json", edit))
    assert "\n" not in str(caught.value)


def test_damaged_bundles_are_read_or_refused(bundle: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(_FUZZED), "bundle", str(bundle), "500", "0"], capture_output=True, text=True
    )
    assert result.returncode == 0, (result.stdout[-20:], result.stderr[-2000:])
    assert 0 < int(result.stdout.split()[-1]) < 100, "most damage must be noticed"


_MOST_MEGABYTES = 2048
"""With all libraries loaded, and many of their kernels built."""


@pytest.mark.parametrize(("count", "seed"), [(100, 0), pytest.param(2000, 1000, marks=pytest.mark.slow)])
def test_edited_bundles_are_run_or_refused(count: int, seed: int, tmp_path: Path) -> None:
    """Placements, schedules, models and archives that somebody made up, on all backends: no signal, no other
    exception than ours, bounded memory, and nothing written but compiled kernels.
    """
    folders = {name: tmp_path / name for name in ("bundle", "cwd", "user", "tmp", "home")}
    for folder in folders.values():
        folder.mkdir()
    path = folders["bundle"] / "m.collage"
    save_mixed(path)
    load(path)
    variables = {"HOME": folders["user"], "TMPDIR": folders["tmp"], "COLLAGE_HOME": folders["home"]}
    result = subprocess.run(
        [sys.executable, str(_FUZZED), "edited", str(path), str(count), str(seed)],
        cwd=folders["cwd"],
        env={**os.environ, **{name: str(folder) for name, folder in variables.items()}},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, (result.stdout[-3000:], result.stderr[-3000:])
    _, megabytes, _, good = result.stdout.split()[-4:]
    assert count / 10 < int(good) < count / 2, "some edits change nothing that matters, most do"
    assert int(megabytes) < _MOST_MEGABYTES
    kept = {folders["home"] / "kernels", folders["home"] / "tvm" / "objects"}
    kept.add(folders["user"] / ".cache" / "collage" / "discovered")
    left = [p for p in tmp_path.rglob("*") if p.is_file() and kept.isdisjoint(p.parents)]
    assert sorted(left) == [path, path.with_name("variant")]


def test_single_libraries_to_compare_with(bundle: Path) -> None:
    placed = bundle_of(weighted_graph())
    singles = {"reference": placed.placement, "other": bundle_of(weighted_graph(), "other").placement}
    save(Bundle(placed.graph, placed.placement, singles=singles), bundle)
    again = read(bundle)
    assert again.singles == singles
    assert again.origin["backends"].keys() == {"reference"}, "of those that are installed"
    load(bundle)  # whatever is missing for the others
    without = _edited(bundle, "singles.json", lambda data: None)
    assert (read(without).singles, read(without).placement) == ({}, placed.placement)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda singles: [singles], "singles.json holds no placements by label"),
        (lambda singles: {str(i): singles["a"] for i in range(65)}, "or more than 64"),
        (lambda singles: {"a": 5}, "not a placement: the placement is 5"),
        (
            lambda singles: {"a": {**singles["a"], "threads": 2}},
            "singles.json and placement.json are of different targets",
        ),
        (lambda singles: {"a": {**singles["a"], "threads": 10**6}}, "threads must be 1 to 1024"),
    ],
)
def test_single_libraries_that_make_no_sense(edit: Callable[[Any], Any], said: str, bundle: Path) -> None:
    placed = bundle_of(weighted_graph())
    save(Bundle(placed.graph, placed.placement, singles={"a": placed.placement}), bundle)
    edited = _edited(bundle, "singles.json", lambda data: json.dumps(edit(json.loads(data))).encode())
    with pytest.raises(BundleError, match=said):
        read(edited)


def test_terminals_are_told_nothing(bundle: Path, refused: Refused) -> None:
    """A name from a file is shown, and moves no cursor."""

    def edit(data: bytes) -> bytes:
        placement = json.loads(data)
        placement["groups"][0]["options"] = {"\x1b[31mred\x1b[2J": "a\nb"}
        return json.dumps(placement).encode()

    line = refused("run", _edited(bundle, "placement.json", edit), "--input", f"x={bundle.parent}/x.npy")
    assert "does not offer" in line
    assert line.isprintable()
    assert "\\x1b[31mred" in line
