"""`collage config`: what is set, and where."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from collage_core.cli.arguments import add_json
from collage_core.cli.output import show
from collage_core.report.tables import Table
from collage_core.steering import SETTINGS, read_settings, settings_files

NAME = "config"
SUMMARY = "Show the settings that files and the environment make, and where each comes from."
_PREFIX = "COLLAGE_"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    found = read_settings()
    report = {
        "files": [{"path": str(path), "is_there": os.path.exists(path)} for path in settings_files()],
        "settings": {
            name: {"value": found[name].value, "where": found[name].where} if name in found else None
            for name in SETTINGS
        },
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_PREFIX)},
    }
    show(report, args.json, _text)


def _text(report: Mapping[str, Any]) -> str:
    rows = [
        (name, "-", "the command's default") if told is None else (name, _shown(told["value"]), told["where"])
        for name, told in report["settings"].items()
    ]
    rows += [(name, value, "environment") for name, value in report["environment"].items()]
    files = [f"{f['path']}{'' if f['is_there'] else ' (not there)'}" for f in report["files"]]
    looked = f"looked for in {', '.join(files)}" if files else "no file is looked for"
    return f"{Table(('setting', 'value', 'from'), rows)}\n\n{looked}; what stands later goes before"


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
