"""`collage check`: a bundle as it was, on other versions, on another processor, and beside new costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx.parser
import pytest
from bundle_edits import members_of, packed

from collage_core.cli.main import main
from collage_core.costs import CostDatabase
from collage_core.pipeline.verdicts import Status
from collage_core.plugins import PLUGINS_VARIABLE, default_registry
from collage_core.runtime import read, save
from collage_core.target import processor

if TYPE_CHECKING:
    from collage_command import Optimised

    from tests.cli.conftest import Mistake

pytestmark = pytest.mark.ci

sys.path.append(str(Path(__file__).parent / "plugins"))

_MODEL = """<ir_version: 10, opset_import: ["" : 20]> g (float[8] x) => (float y) {
    [first] r = Relu(x)
    [second] y = Neg(r)
}"""

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def _upgraded() -> Iterator[None]:
    """The libraries of plugins/ are installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGINS_VARIABLE, "cli_upgraded_backends")
        default_registry.cache_clear()
        yield
    default_registry.cache_clear()


@pytest.fixture(scope="module")
def made(_upgraded: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle, all of it on `steady`, and the costs that it comes from."""
    folder = tmp_path_factory.mktemp("made")
    onnx.save(onnx.parser.parse_model(_MODEL), folder / "m.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLAGE_LOCK", str(folder / "lock"))
        files = [str(folder / name) for name in ("m.onnx", "m.collage", "c.sqlite")]
        # The reference does not sleep.
        options = ["--threads", "1", "--rounds", "2", "--backends", "steady,moving", "--exclude", "reference"]
        assert main(["optimize", files[0], "-o", files[1], "--costs", files[2], *options]) == 0
    return folder


class Checked:
    """`collage check`, as JSON, on what `made` has; costs are a copy of the test's own."""

    def __init__(self, made: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.bundle, self.costs = folder / "m.collage", folder / "c.sqlite"
        self.bundle.write_bytes((made / "m.collage").read_bytes())
        self.costs.write_bytes((made / "c.sqlite").read_bytes())
        self._capsys = capsys

    def __call__(self, *options: str | Path) -> dict[str, Any]:
        """One sitting, unless the options say more."""
        self._capsys.readouterr()
        arguments = ["check", self.bundle, "--costs", self.costs, "--json", "--budget", "0.1s", *options]
        status = main([str(a) for a in arguments])
        report: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert report["status"] == status
        assert all(type(v["text"]) is str for v in report["verdicts"])
        return report

    def edit(self, edit: Edit) -> None:
        """Change the manifest, as another machine would have written it."""
        members = members_of(self.bundle)
        manifest = json.loads(members["manifest.json"])
        edit(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()
        self.pack(members)

    def pack(self, members: dict[str, bytes]) -> None:
        self.bundle.write_bytes(packed(members))


@pytest.fixture
def check(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checked:
    return Checked(made, tmp_path, capsys)


def _texts(report: dict[str, Any]) -> dict[str, str]:
    return {v["about"]: v["text"] for v in report["verdicts"]}


def test_as_it_was(check: Checked) -> None:
    report = check()
    assert report["status"] == Status.BEST
    assert _texts(report).keys() == {"answers", "speed", "since then"}
    assert _texts(report)["answers"] == "answers: the same as the reference's"
    assert "; the best other single library now is moving at " in _texts(report)["speed"]
    assert report["singles"].keys() == report["then"]["singles"].keys() == {"moving"}
    assert report["then"]["chosen"] == "steady"
    assert report["prediction"]["placement_ms"] == pytest.approx(report["prediction"]["least_ms"])
    assert report["prediction"]["newer"] == 0


def test_a_rival_was_upgraded(check: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOVING_VERSION", "2.0")
    report = check()
    assert report["status"] == Status.SLOWER
    texts = _texts(report)
    assert texts["speed"].endswith(": moving alone is faster")
    assert texts["since then"].endswith("moving went from 1.0 to 2.0 since, and is faster now")
    assert texts["versions"] == "measured with moving (library) 1.0; here it is 2.0"
    assert texts["advice"].endswith(f"m.onnx -o {check.bundle}")
    assert report["versions"] == [{"backend": "moving", "what": "library", "then": "1.0", "now": "2.0"}]


def test_another_version_that_is_no_faster(check: Checked) -> None:
    check.edit(lambda m: m["origin"]["backends"]["steady"].update(library="0.9"))
    report = check()
    assert report["status"] == Status.STALE
    assert _texts(report)["versions"] == "measured with steady (library) 0.9; here it is 1.0"


def test_another_processor(check: Checked) -> None:
    check.edit(lambda m: m["origin"]["processor"].update(model="Abacus 9000"))
    report = check()
    assert report["status"] == Status.STALE
    assert report["processor"] == {"then": "Abacus 9000", "now": processor().model}
    assert _texts(report)["processor"] == (
        f"made on another processor (Abacus 9000; this is {processor().model}): "
        "figures of then do not compare"
    )
    assert "since then" not in _texts(report)


@pytest.mark.parametrize(
    ("backend", "ms", "status"),
    [("moving", 0.5, Status.STALE), ("moving", 1000.0, Status.BEST), ("steady", 90.0, Status.STALE)],
)
def test_a_cost_pack(backend: str, ms: float, status: Status, check: Checked, tmp_path: Path) -> None:
    """Of kernels on one library, as somebody has measured them on such a processor since."""
    packed = []
    with CostDatabase(check.costs) as database:
        for line in database.export():
            cost = json.loads(line)
            if cost["key"]["kind"] == "kernel" and cost["key"]["backend"] == backend:
                cost["record"]["median_ms"] = ms
                packed.append(json.dumps({**cost, "created_at": cost["created_at"] + 1e6}))
    (tmp_path / "pack.jsonl").write_text("\n".join(packed))
    assert main(["costs", "--costs", str(check.costs), "import", str(tmp_path / "pack.jsonl")]) == 0
    report = check()
    assert report["status"] == status
    assert report["prediction"]["newer"] == len(packed) == 2
    assert ("costs" in _texts(report)) == (status is Status.STALE)
    if status is Status.STALE:
        assert _texts(report)["costs"].startswith(
            "costs imported or measured since (2 newer than the bundle, for this processor) predict another "
            "placement to be faster: "
        )
        assert "for moving (2 nodes) against" in _texts(report)["costs"]


def test_wrong_answers(
    check: Checked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEADY_VERSION", "wrong")
    report = check()
    assert report["status"] == Status.WRONG
    assert _texts(report).keys() == {"answers", "versions"}
    assert main(["check", str(check.bundle), "--costs", str(check.costs), "--budget", "0.1s"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("answers: not the reference's: output 'y' has error ")
    (line,) = [line for line in captured.err.splitlines() if line.startswith("collage: ")]
    assert line.startswith(f"collage: {check.bundle}: its answers are not the reference's: output 'y'")


def test_a_rival_answers_wrongly(check: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOVING_VERSION", "wrong")
    report = check()
    assert report["status"] == Status.STALE
    assert report["not_compared"]["moving"].startswith("output 'y' has error ")
    assert "no single library ran beside it" in _texts(report)["speed"]


def test_a_bundle_of_before_it_held_single_libraries(check: Checked) -> None:
    bundle = read(check.bundle)
    report: dict[str, Any] = {k: v for k, v in bundle.report.items() if k != "constraints"}
    del report["search"]["alone_ms"]
    save(replace(bundle, report=report, singles={}), check.bundle)
    found = check()
    assert found["status"] == Status.BEST
    assert found["prediction"] is None
    assert found["not_compared"]["moving"].startswith(
        "the bundle does not hold how it runs this alone; when it was made it took "
    )


def test_graph_libraries_get_the_whole_graph(check: Checked) -> None:
    """Be they in the bundle or not."""
    report = check("--backends", "onnxruntime,moving,dnnl")
    assert report["status"] == Status.SLOWER, "it does not sleep"
    assert report["singles"].keys() == {"moving", "onnxruntime"}
    assert report["not_compared"] == {"dnnl": "the bundle does not hold how it runs this alone"}


def test_a_library_that_is_gone(check: Checked) -> None:
    bundle = read(check.bundle)
    singles = [*bundle.report["singles"], {"backend": "abacus", "alone": True}]
    held = {**bundle.singles, "abacus": bundle.singles["moving"]}
    save(replace(bundle, report={**bundle.report, "singles": singles}, singles=held), check.bundle)
    report = check()
    assert report["not_compared"] == {"abacus": "it is not installed here"}


def test_what_cannot_be_checked(check: Checked, mistake: Mistake, tmp_path: Path) -> None:
    costs = ("--costs", check.costs)
    assert "no such file" in mistake("check", tmp_path / "none.collage", *costs)
    assert "expected a duration" in mistake("check", check.bundle, "--budget", "soon", *costs)
    assert "unknown backend 'abacus'" in mistake("check", check.bundle, "--backends", "abacus", *costs)
    whole = check.bundle.read_bytes()
    check.edit(lambda m: m["report"].update(singles=5))
    assert "its report is damaged" in mistake("check", check.bundle, *costs)
    check.bundle.write_bytes(whole)
    check.edit(lambda m: m["origin"].update(backends=5))
    assert "its manifest is damaged" in mistake("check", check.bundle, *costs)
    check.bundle.write_bytes(whole[:-10])
    assert "not a bundle, or a damaged one" in mistake("check", check.bundle, *costs)


def test_a_missing_backend_and_one_that_fails(
    check: Checked, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADY_VERSION", "7.0")  # which it knows no times of
    said = mistake("check", check.bundle, "--costs", check.costs)
    assert f"{check.bundle}: it does not run here: " in said
    monkeypatch.delenv(PLUGINS_VARIABLE)
    default_registry.cache_clear()
    try:
        said = mistake("check", check.bundle, "--costs", check.costs)
        assert f"{check.bundle}: its backend 'steady' is not installed here; installed: " in said
    finally:
        default_registry.cache_clear()


def test_what_a_user_has_optimised(optimised: Optimised) -> None:
    """With libraries that compile and are called, in as many sittings as fit into ten seconds."""
    collage = optimised.collage
    process = collage.start("check", optimised.bundle, "--budget", "10s", "--json")
    out, err = process.communicate(timeout=600)
    report = json.loads(out)
    assert process.returncode == report["status"], err
    assert report["status"] in (Status.BEST, Status.SLOWER), "as days differ"
    assert report["max_rel_error"] < 1e-4
    assert report["versions"] == []
    rivals = {"dnnl", "tvm"} - {optimised.second["chosen"]}
    assert rivals <= report["singles"].keys() | report["not_compared"].keys()
    prediction = report["prediction"]
    chosen, least = (optimised.second["search"]["alone_ms"][k] for k in ("chosen", "least"))
    assert prediction["placement_ms"] == pytest.approx(chosen)
    # What was measured after the search had ended may make a better one known, by less than is told of.
    assert 0.98 * least < prediction["least_ms"] <= 1.0001 * least
