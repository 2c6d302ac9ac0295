"""Settings: files that stand in for options, and `collage config`, which says what they set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from small_models import relu_model

from collage_core.cli.main import main

if TYPE_CHECKING:
    from collage_command import Optimised

    from tests.cli.conftest import Mistake


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one that commands run in; the user's settings would lie in its `user` folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("COLLAGE_SETTINGS", raising=False)
    (tmp_path / "user" / "collage").mkdir(parents=True)
    return tmp_path


def _config(capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["config", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_nothing_is_set(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = _config(capsys)
    assert set(report["settings"].values()) == {None}
    assert [f["is_there"] for f in report["files"]] == [False, False]
    assert main(["config"]) == 0
    assert "the command's default" in capsys.readouterr().out


def test_what_is_set_and_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = folder / "user" / "collage" / "collage.yaml"
    users.write_text("threads: 1\neffort: quick\ncosts: mine.sqlite\n")
    Path("collage.yaml").write_text(
        "# here\neffort: thorough\nexclude: [tvm, 'dnnl:Conv']\nbackends: [a, b]\n"
    )
    settings = _config(capsys)["settings"]
    assert settings["threads"] == {"value": 1, "where": f"{users}:1"}
    assert settings["effort"] == {"value": "thorough", "where": "collage.yaml:2"}
    assert settings["costs"] == {"value": str(users.parent / "mine.sqlite"), "where": f"{users}:3"}
    assert settings["exclude"]["value"] == ["tvm", "dnnl:Conv"]
    assert settings["backends"]["value"] == "a,b"
    assert settings["pin"] is None
    assert main(["config"]) == 0
    assert "tvm, dnnl:Conv" in capsys.readouterr().out


def test_what_sets_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "user" / "collage" / "collage.yaml").write_text("exclude: [tvm]\n")
    Path("collage.yaml").write_text("# nothing\n")
    assert _config(capsys)["settings"]["exclude"]["value"] == ["tvm"]
    Path("collage.yaml").write_text("exclude: []\n")
    assert _config(capsys)["settings"]["exclude"]["value"] == []


def test_nobodys_home(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr("pathlib.Path.expanduser", _no_home)
    assert [f["path"] for f in _config(capsys)["files"]] == ["collage.yaml"]


def test_a_folder_that_cannot_be_looked_into(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root's is for others, where an image says that it is everybody's home: there is nothing in it."""
    config = f"/{'x' * 300}"
    with pytest.raises(OSError, match="too long"):
        Path(config).exists()
    monkeypatch.setenv("XDG_CONFIG_HOME", config)
    assert [f["is_there"] for f in _config(capsys)["files"]] == [False, False]


def _no_home(path: Path) -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_another_file_or_none(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mistake: Mistake
) -> None:
    Path("collage.yaml").write_text("effort: quick\n")
    Path("other.yaml").write_text("effort: thorough\n")
    monkeypatch.setenv("COLLAGE_SETTINGS", "other.yaml")
    report = _config(capsys)
    assert report["settings"]["effort"] == {"value": "thorough", "where": "other.yaml:1"}
    assert report["environment"]["COLLAGE_SETTINGS"] == "other.yaml"
    monkeypatch.setenv("COLLAGE_SETTINGS", "off")
    assert _config(capsys)["settings"]["effort"] is None
    monkeypatch.setenv("COLLAGE_SETTINGS", "none.yaml")
    assert "cannot read none.yaml: no such file" in mistake("config")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("threads: two", "collage.yaml:1: 'threads' of the file is 'two', and no whole number"),
        ("seed: 1_0", "collage.yaml:1: 'seed' of the file is '1_0', and no whole number"),
        ("costs: ~nosuchuser/x", "collage.yaml:1: 'costs' is '~nosuchuser/x', and there is no such home"),
        ("max-error: little", "collage.yaml:1: 'max-error' is 'little', and not a number"),
        ("\nefort: quick", "collage.yaml:2: the file has no 'efort'; did you mean 'effort'?"),
        ("metric: evil.py:f", "collage.yaml:1: the file has no 'metric'"),
        ("effort: [quick]", "collage.yaml:1: 'effort' of the file is no text"),
        ("effort: fast", "set by files: effort (collage.yaml:1)"),
        ("# few\nthreads: 0", "threads must be 1 to 1024, not 0; set by files: threads (collage.yaml:2)"),
        ("backends: nobody", "unknown backend 'nobody'"),
        ("pin: [foo]", "pin foo: expected NAME=VALUE"),
    ],
)
def test_mistakes(folder: Path, mistake: Mistake, text: str, said: str) -> None:
    Path("collage.yaml").write_text(text)
    onnx.save(relu_model(), "m.onnx")
    assert said in mistake("optimize", "m.onnx")


def test_what_reads_no_settings_goes_on(folder: Path, bundle: Path) -> None:
    Path("collage.yaml").write_text("what: ever")
    assert main(["explain", str(bundle)]) == 0
    assert main(["backends"]) == 0
    with pytest.raises(SystemExit) as ended:
        main(["optimize", "--help"])
    assert ended.value.code == 0


@pytest.mark.ci
def test_settings_are_options(folder: Path, optimised: Optimised, capsys: pytest.CaptureFixture[str]) -> None:
    costs = optimised.collage.home / "costs.sqlite"
    Path("collage.yaml").write_text(
        f"threads: 1\nrounds: 4\nbackends: [dnnl, tvm]\nexclude: [tvm]\ncosts: {costs}\n"
    )
    assert main(["optimize", str(optimised.model), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["threads"], report["constraints"]["excluded"]) == (1, [["tvm", None]])
    assert main(["optimize", str(optimised.model), "--exclude", "dnnl:MaxPool", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["constraints"]["excluded"] == [["tvm", None], ["dnnl", "MaxPool"]]
    node = "/maxpool/MaxPool"
    Path("collage.yaml").write_text(
        f"threads: 1\nrounds: 4\nbackends: dnnl\ncosts: {costs}\npin: ['{node}=dnnl']\n"
    )
    assert main(["optimize", str(optimised.model), "--pin", f"{node}=reference", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["constraints"]["pins"] == {node: "reference"}, "an option goes before"
    assert not list(folder.glob("home/*.sqlite")), "the costs are where the file says"
