"""Plugins that crash, end the process, hang or print, when they are asked what they bring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collage_core.errors import Terminated
from collage_core.plugins import Registry

_OFFERS = """
import ctypes, os
from collage_core import Backend, BackendInfo, BackendKind, hookimpl
class Acme(Backend):
    name = "acme"
    def info(self): return BackendInfo("acme", BackendKind.OPERATOR, "1", "1")
    def variants(self, subgraph, target): {}
    def build(self, subgraph, variant, target): raise NotImplementedError
@hookimpl
def collage_backends(): return [Acme()]
"""
_FAULTS = {
    "crashes": ("import ctypes; ctypes.string_at(1)", "asked what it brings, it crashes (SIGSEGV)"),
    "aborts": ("import os; os.abort()", "asked what it brings, it crashes (SIGABRT)"),
    "leaves": ("import os; os._exit(0)", "asked what it brings, it ends the process (status 0)"),
    "hangs": ("import time; time.sleep(600)", "asked what it brings, it gives no answer within 2 s"),
    "odd": ("class Odd(BaseException): pass\nraise Odd", "asked what it brings, it raises Odd"),
    "raises": ("raise ValueError('no library')", "ValueError: no library"),
    "crashes when asked": (
        _OFFERS.format("ctypes.string_at(1)"),
        "asked what it brings, it crashes (SIGSEGV)",
    ),
    "leaves when asked": (
        _OFFERS.format("os._exit(0)"),
        "asked what it brings, it ends the process (status 0)",
    ),
}


@dataclass(frozen=True)
class Site:
    """A folder of packages, each of which brings one plugin."""

    folder: Path

    def install(self, name: str, source: str, version: str = "1.0") -> None:
        for old in self.folder.glob(f"{name}-*.dist-info"):
            old.rename(self.folder / f"{old.name}.old")
        (self.folder / f"{name}_plugin.py").write_text(source, encoding="utf-8")
        facts = self.folder / f"{name}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (facts / "entry_points.txt").write_text(f"[collage]\n{name} = {name}_plugin\n")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command, in an environment that has them."""
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.folder), *filter(None, sys.path)]),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "COLLAGE_HOME": str(self.folder / "home"),
            "COLLAGE_DISCOVERY_LIMIT_S": "2",
        }
        variables.pop("COLLAGE_LEFT_OUT", None)
        command = [sys.executable, "-m", "collage_core.cli.main", *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)

    def backends(self) -> dict[str, Any]:
        """By name, as `collage backends` has them."""
        done = self.run("backends", "--json")
        assert done.returncode == 0, done.stderr
        return {b["name"]: b for b in json.loads(done.stdout)}

    def seen(self) -> int:
        return len([*(self.folder / "cache").rglob("discovered/*")])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, marks=pytest.mark.ci if f in ("crashes", "hangs", "odd") else pytest.mark.slow)
        for f in _FAULTS
    ],
)
def test_one_that_cannot_be_asked_costs_itself(site: Site, fault: str) -> None:
    source, reason = _FAULTS[fault]
    site.install("acme", source)
    for _ in range(2):
        found = site.backends()
        assert found["reference"]["available"]
        assert found["dnnl"]["available"]
        assert found["acme"]["reason"] == f"{reason} (acme 1.0; to do without it: pip uninstall acme)"


@pytest.mark.ci
def test_each_thing_that_a_plugin_brings_is_asked(site: Site) -> None:
    """What one of them raises hides no other; who says that it is not available is not asked."""
    source = (
        _OFFERS.format("raise ValueError")
        + """
class Brown(Acme):
    name = "brown"
    def info(self): return BackendInfo("brown", BackendKind.OPERATOR, "1", "1", reason=WHY)
    def variants(self, subgraph, target): os._exit(3)
@hookimpl
def collage_backends(): return [Acme(), Brown()]
"""
    )
    site.install("acme", "WHY = None\n" + source)
    found = site.backends()
    assert found["acme"]["reason"].startswith(
        "asked what it brings, it ends the process (status 3) (acme 1.0;"
    )
    site.install("acme", "WHY = 'not here'\n" + source, version="1.1")
    found = site.backends()
    assert (found["acme"]["available"], found["brown"]["reason"]) == (True, "not here")


@pytest.mark.ci
def test_one_that_is_mended_is_asked_again(site: Site) -> None:
    site.install("acme", _FAULTS["crashes"][0])
    site.install("brown", _FAULTS["leaves"][0])
    site.install("zebra", "")
    found = site.backends()
    assert {"acme", "brown"} <= found.keys()
    assert "zebra" not in found, "which brings nothing, and no fault"
    site.install("acme", "", version="1.1")
    assert "acme" not in site.backends()


@pytest.mark.ci
def test_what_was_asked_is_not_asked_again(site: Site) -> None:
    site.install("acme", "import pathlib\nwith open(__file__ + '.log', 'a') as f:\n    f.write('asked ')")
    log = site.folder / "acme_plugin.py.log"
    site.backends()
    count = site.seen()
    assert log.read_text() == "asked asked ", "in a process of its own, and here"
    site.backends()
    assert log.read_text() == "asked asked asked "
    assert site.seen() == count


@pytest.mark.ci
def test_where_nothing_can_be_remembered(site: Site) -> None:
    """Each command asks, and its own children do not."""
    log = site.folder / "log"
    site.install("acme", f"with open({str(log)!r}, 'a') as f:\n    f.write('asked ')")
    (site.folder / "cache").write_text("no folder")
    for count in (2, 4):
        assert "acme" not in site.backends()
        assert log.read_text() == "asked " * count


@pytest.mark.ci
def test_what_it_writes_is_no_report(site: Site) -> None:
    source = "import os\nprint('hello')\nos.write(1, b'hello')\nos.system('echo hello')\n"
    site.install("acme", source)
    assert "acme" not in site.backends()
    site.install("brown", "import os\nos.close(1)\n")
    assert "brown" not in site.backends()


def test_who_is_asked_to_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, dist = "acme", None

        def load(self) -> object:
            raise Terminated(143)

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point()])
    monkeypatch.setattr("collage_core.plugins.left_out", lambda points: {})
    with pytest.raises(Terminated):
        Registry()
