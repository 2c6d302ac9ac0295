"""Records of collected runs: whose turn is next, and that the pages say what the records say."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest
from collage_benchmarks.evidence import __main__ as command
from collage_benchmarks.evidence import machine
from collage_benchmarks.evidence.collecting import require_packages_of, started_now
from collage_benchmarks.evidence.efforts import EFFORTS_FOLDER
from collage_benchmarks.evidence.pages import filled, stale_pages
from collage_benchmarks.evidence.records import RUNS_FOLDER, counted, due, read_records, write_record
from collage_benchmarks.evidence.repository import commit_of
from collage_benchmarks.evidence.runs import AHEAD, FASTER, ITSELF, SLOWER, TIE, Run
from collage_benchmarks.evidence.tables import all_runs, figures
from fake_collage import BACKENDS, BENCHED, OPTIMIZED, contender

from collage_core.errors import CollageError

_ROOT = Path(__file__).parents[2]


def _record(
    network: str = "resnext50",
    started: str = "2026-11-24T01:02:03Z",
    family: str = "25",
    commit: str = "a",
    date: str = "2026-11-20T12:00:00Z",
    dirty: bool = False,
    failed: bool = False,
    others_s: float = 2.5,
) -> dict[str, Any]:
    return copy.deepcopy(
        {
            "format": 1,
            "network": network,
            "model_sha256": "0" * 64,
            "processor": {
                "vendor": "AuthenticAMD",
                "name": "AMD EPYC",
                "family": family,
                "model": "17",
                "stepping": "1",
                "cores": 2,
                "cpus": 2,
            },
            "commit": {"id": commit * 40, "date": date},
            "dirty": dirty,
            "started": started,
            "settings": {"effort": "normal", "threads": 2},
            "software": {
                "python": "3.11.9",
                "system": "Linux 6.1",
                "onednn": "3.2.0",
                "backends": BACKENDS,
            },
            "failed": {"step": "bench", "exit_code": 1, "last_lines": ["a | b"]} if failed else None,
            "optimize": OPTIMIZED,
            "bench": BENCHED,
            "sittings": [],
            "seconds": {"build": 1.0, "optimize": 39.0, "bench": 10.0},
            "others_cpu_s": others_s,
        }
    )


def test_records_are_kept_as_they_are(tmp_path: Path) -> None:
    records = [_record("dcgan", "2026-11-24T02:00:00Z"), _record(), _record(family="26")]
    paths = [write_record(tmp_path, r) for r in records]
    assert str(paths[1].relative_to(tmp_path)) == (
        "amd-epyc-family-25-model-17-2-cpus/resnext50/2026-11-24T010203Z.json"
    )
    assert read_records(tmp_path) == [records[1], records[2], records[0]]
    assert not list(tmp_path.rglob("*.partial"))
    paths[0].write_text('{"format": 99}')
    with pytest.raises(CollageError, match="has format 99"):
        read_records(tmp_path)
    paths[0].write_text("[]")
    with pytest.raises(CollageError, match="no record of a run"):
        read_records(tmp_path)


def test_the_network_with_the_fewest_runs_here_and_now_is_due() -> None:
    networks = ["bert_base", "resnext50", "dcgan"]
    slug = Run(_record()).slug

    def next_of(*records: dict[str, Any], runs: int = 2, hour: str = "2026-11-24T02") -> str | None:
        return due(counted(records, networks, slug, "a" * 40), runs, hour)

    assert next_of() == "bert_base"
    assert next_of(_record("bert_base")) == "resnext50"
    assert next_of(_record("bert_base"), _record("resnext50", failed=True)) == "dcgan"
    elsewhere = [_record("bert_base", family="26"), _record("bert_base", commit="b")]
    elsewhere.append(_record("bert_base", others_s=20.0))
    assert next_of(*elsewhere, _record("bert_base", dirty=True)) == "bert_base"
    assert next_of(*map(_record, networks)) == "bert_base"
    assert next_of(*map(_record, networks), runs=1) is None
    this_hour = _record("bert_base", started="2026-11-24T02:59:00Z")
    assert next_of(this_hour, *map(_record, networks[1:])) == "resnext50", "runs are of different hours"
    assert next_of(this_hour, hour="2026-11-24T03") == "resnext50", "it has fewer"
    assert next_of(*(_record(n, started="2026-11-24T02:00:00Z") for n in networks)) is None


def test_verdicts() -> None:
    def verdict(change: dict[str, dict[str, Any]], **report: Any) -> str:
        record = _record()
        record["optimize"].update(report)
        for name, changed in change.items():
            record["optimize"]["contenders"][name].update(changed)
        return Run(record).verdict

    assert verdict({}) == FASTER
    assert verdict({"tvm": {"ratio": 1.009, "is_slower": False}}) == TIE
    assert verdict({"tvm": {"ratio_as_it_came": 0.99}}) == TIE
    left_out = {"ratio": 1.18, "is_slower": False, "sittings": 1, "ratio_of_rounds": [1.1, 1.2]}
    assert verdict({"tvm": left_out}) == AHEAD
    assert verdict({"tvm": {**left_out, "ratio_of_rounds": [0.99, 1.2]}}) == TIE, "it was not in every round"
    assert verdict({"tvm": {**left_out, "ratio": 1.12}}) == TIE
    assert verdict({"tvm": {**left_out, "sittings": 3}}) == TIE, "that is enough for an interval"
    assert verdict({}, beaten_by=["tvm"]) == SLOWER
    assert verdict({}, beaten_by=["mix"]) == FASTER, "another mix is no library alone"
    assert verdict({}, chosen="dnnl+reference") == ITSELF
    chosen = _record()
    chosen["optimize"]["chosen"] = "onnxruntime"
    chosen["optimize"]["contenders"]["onnxruntime"] = contender(10.0, 1.0, None)
    assert Run(chosen).singles[0].name == "onnxruntime"


def test_the_table_of_figures() -> None:
    second, third = (_record(started=f"2026-11-24T0{hour}:00:00Z") for hour in (2, 3))
    second["optimize"]["contenders"]["collage"]["median_ms"] = 12.0
    second["optimize"]["contenders"]["tvm"].update(ratio=1.3, ratio_as_it_came=1.35)
    second["optimize"]["shares"] = {"tvm": {"share": 0.97}, "dnnl": {"share": 0.03}}
    third["optimize"]["contenders"]["collage"]["median_ms"] = 11.0
    third["optimize"]["contenders"]["tvm"].update(ratio=1.005, is_slower=False)
    old = _record(commit="c", date="2026-11-19", started="2026-11-25T00:00:00Z")
    others = [_record("dcgan"), _record("dcgan", failed=True), _record("bert_base", failed=True), old]
    of_no_table = [_record(family="26", dirty=True), _record("mnist", others_s=20.0)]
    lines = figures([_record(), second, third, *others, *of_no_table]).splitlines()
    assert lines[0] == (
        "**AMD EPYC (Zen 4; family 25, model 17), 2 cores**, 2 threads, fp32, batch 1. Collage was faster "
        "than every backend alone, beyond what is uncertain, in 3 of 4 runs. The rest: 1 too close to call."
    )
    assert lines[4:7] == [
        "| ResNeXt50-32x4d, 224 x 224 | 3 | TVM + oneDNN 2 of 3, TVM 1 of 3 | 11.0 (10.0 to 12.0) | "
        "TVM 2 of 3, oneDNN+ 1 of 3 | 1.100 (1.005 to 1.250) | 1.200 (1.200 to 1.250) | 2 of 3 | aaaaaaa |",
        "| BERT-base, 12 layers, 128 tokens | 0 of 3, 1 failed | - | - | - | - | - | - | aaaaaaa |",
        "| DCGAN's generator | 1 of 3, 1 failed | TVM + oneDNN 1 of 1 | 10.0 | TVM 1 of 1 | 1.100 | 1.200 | "
        "1 of 1 | aaaaaaa |",
    ]
    assert lines[-6:-2] == [
        "| | oneDNN (our plugin over 3.2.0) | TVM (our kernels, 0.27.0) | "
        "ONNX Runtime 1.32.0, called directly | OpenVINO 2026.4.1, called directly |",
        "| --- | --- | --- | --- | --- |",
        "| ResNeXt50-32x4d, 224 x 224 | 1.250+ | 1.100 (1.005 to 1.300) | 1.200 | 0.950 |",
        "| DCGAN's generator | 1.250+ | 1.100 | 1.200 | 0.950 |",
    ]
    assert "ONNX Runtime 1.32.0, as a backend" in lines[-1]
    assert "family 26" not in "".join(lines)
    assert "mnist" not in "".join(lines)


def test_a_row_is_of_one_program_one_setup_and_one_model() -> None:
    def row(*records: dict[str, Any]) -> str:
        return next(line for line in figures(records).splitlines() if line.startswith("| ResNeXt50"))

    times = [f"2026-11-24T0{hour}:00:00Z" for hour in range(1, 7)]
    three = [_record(started=t) for t in times[:3]]
    new: dict[str, Any] = {"commit": "b", "date": "2026-11-21T01:00:00+02:00"}
    assert row(*three, _record(started=times[3], **new)).endswith(" aaaaaaa |"), "one run replaces no three"
    newer = [_record(started=t, **new) for t in times[3:6]]
    assert row(*three, *newer).endswith(" bbbbbbb |")
    assert row(*three, *newer[:2], _record(started=times[4], **new)).endswith(" aaaaaaa |"), "of two hours"
    for change in ({"model_sha256": "1" * 64}, {"settings": {"effort": "quick", "threads": 2}}):
        other = {**_record(started=times[3]), **change}
        assert row(*three, other).startswith("| ResNeXt50-32x4d, 224 x 224 | 3 |")
    assert "| 3, 1 failed |" in row(*three, _record(started=times[3], failed=True))
    at_night = [_record(started=t, commit="b", date="2026-11-20T23:00:00-05:00") for t in times[:3]]
    in_the_morning = [_record(started=t, commit="c", date="2026-11-21T01:00:00+05:00") for t in times[:3]]
    assert row(*at_night, *in_the_morning).endswith(" bbbbbbb |"), "it is three hours later"


def test_every_run_is_a_line() -> None:
    records = [_record(), _record(family="26", dirty=True), _record(failed=True, others_s=20.0)]
    records[1]["software"]["python"] = "3.12.1"
    text = all_runs(records)
    lines = [line for line in text.splitlines() if line.startswith("| 2026")]
    assert len(lines) == 3
    assert lines[0] == (
        "| 2026-11-24T01:02:03Z | aaaaaaa | resnext50 | graph: TVM + oneDNN | 10.0 | 9.75 | "
        "TVM 1.100 +- 0.010 | 1.200 | 1.200 +- 0.010 | 0.950 | faster | 0 (0), 0, 0 | 2.5% | 1 |"
    )
    assert r"bench failed (1): a \| b" in lines[1]
    assert "| 20.0%, disturbed |" in lines[1]
    assert "| aaaaaaa, changed |" in lines[2]
    assert "\n1. `collage optimize --effort normal`, 2 threads; " in text
    assert "Python 3.12.1" in text.splitlines()[-1]


def test_blocks_are_filled_and_nothing_else() -> None:
    page = "before\n<!-- evidence: runs -->\nold\n<!-- /evidence -->\nafter\n"
    text = filled(page, [_record()])
    assert text.startswith("before\n<!-- evidence: runs -->\n###")
    assert text.endswith("\n<!-- /evidence -->\nafter\n")
    assert "old" not in text
    assert filled(text, [_record()]) == text
    with pytest.raises(CollageError, match="no evidence 'rows', only figures, runs"):
        filled(page.replace("runs", "rows"), [])
    with pytest.raises(CollageError, match="no block"):
        filled("a page", [])


def test_the_pages_say_what_the_records_say() -> None:
    stale = stale_pages(_ROOT, read_records(_ROOT / RUNS_FOLDER), read_records(_ROOT / EFFORTS_FOLDER))
    assert not stale, "python -m collage_benchmarks.evidence tables"


def _git(folder: Path, *arguments: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *person, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "collage_core").mkdir(parents=True)
    (root / "docs" / "results").mkdir(parents=True)
    (root / "collage_core" / "core.py").write_text("1")
    _git(tmp_path, "init", "-q", str(root))
    _git(root, "add", ".")
    _git(root, "commit", "-qm", "one")
    return root


def test_the_commit_is_the_programs(repository: Path) -> None:
    first = commit_of(repository)
    assert first.id == first.head
    assert not first.dirty
    (repository / "docs" / "results" / "run.json").write_text("{}")
    (repository / "README.md").write_text("tables")
    assert commit_of(repository) == first, "what runs and tables write is not the program"
    (repository / "plugins" / "one" / "tests").mkdir(parents=True)
    (repository / "plugins" / "one" / "tests" / "test.py").write_text("2")
    assert commit_of(repository).dirty
    _git(repository, "add", ".")
    _git(repository, "commit", "-qm", "two")
    second = commit_of(repository)
    assert (second.id, second.dirty) == (first.id, False)
    assert second.head != first.head
    (repository / "collage_core" / "core.py").write_text("3")
    assert commit_of(repository).dirty


def test_refusals(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert command.main(arguments) == 1
        return capsys.readouterr().err

    monkeypatch.chdir(repository)
    (repository / "collage_core" / "core.py").write_text("3")
    assert "files differ from the commit" in said("collect")
    (repository / "plugins" / "collage_dnnl").mkdir(parents=True)
    assert "the installed collage_core is not this repository's" in said("collect", "--allow-dirty")
    require_packages_of(_ROOT)
    for name, group, classifier in (
        ("acme", "collage", "Typing :: Typed"),
        ("gpu", "collage", "Environment :: GPU :: NVIDIA CUDA"),
        ("user", "of_others", "Typing :: Typed"),
    ):
        folder = tmp_path / "plugins" / f"collage_{name}"
        folder.mkdir(parents=True)
        project = f'[project]\nname = "{name}"\nclassifiers = ["{classifier}"]\n'
        (folder / "pyproject.toml").write_text(f'{project}[project.entry-points.{group}]\n{name} = "m"\n')
    with pytest.raises(CollageError, match="not installed: collage_acme; runs"):
        require_packages_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "not a git repository" in said("status")


def test_tables_check_says_what_differs(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    pages = {
        "README.md": "figures",
        "docs/results/evidence.md": "runs",
        "docs/results/efforts.md": "efforts",
    }
    for page, name in pages.items():
        (repository / page).write_text(f"<!-- evidence: {name} -->\n<!-- /evidence -->\n")
    write_record(repository / RUNS_FOLDER, _record())
    assert command.main(["tables", "--check"]) == 1
    assert "+**AMD EPYC (Zen 4" in capsys.readouterr().out
    assert command.main(["tables"]) == 0
    assert command.main(["tables", "--check"]) == 0
    assert "TVM + oneDNN" in (repository / "README.md").read_text()


def test_status_counts(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    record = {**_record(), "processor": machine.processor_json()}
    record["commit"]["id"] = commit_of(repository).id
    write_record(repository / RUNS_FOLDER, record)
    assert command.main(["status", "--networks", "resnext50", "dcgan"]) == 0
    out = capsys.readouterr().out
    assert "resnext50  1 of 5       0" in out
    assert "next: dcgan" in out
    record["started"] = started_now()
    write_record(repository / RUNS_FOLDER, record)
    assert command.main(["status", "--networks", "resnext50"]) == 0
    assert "next: nothing is due in this hour" in capsys.readouterr().out
