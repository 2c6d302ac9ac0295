"""Markdown tables from records, and nothing but records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any, TypeVar

from collage_benchmarks.evidence.runs import (
    AHEAD,
    ENOUGH_RUNS,
    FASTER,
    ITSELF,
    REFERENCE,
    SLOWER,
    TIE,
    Beside,
    Run,
)
from collage_core.counted import counted
from collage_core.pipeline.benchmark import PEER
from collage_core.pipeline.effort import NORMAL

__all__ = ["all_runs", "figures", "grouped", "markdown", "network_name"]

Key = TypeVar("Key", bound=Hashable)
_COMMAND = "python -m collage_benchmarks.evidence"
_NAMES = {
    "dnnl": "oneDNN",
    "mkl": "MKL",
    "ncnn": "ncnn",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "reference": "the reference",
    "tvm": "TVM",
}
_NETWORKS = {
    "resnext50": "ResNeXt50-32x4d, 224 x 224",
    "bert_base": "BERT-base, 12 layers, 128 tokens",
    "dcgan": "DCGAN's generator",
    "squeezenet": "SqueezeNet",
    "densenet121": "DenseNet-121",
    "inception_v2": "Inception v2",
    "mobilenet_v2": "MobileNet v2",
    "nasnet_a": "NASNet-A",
    "resnet1001": "ResNet-1001",
    "shufflenet": "ShuffleNet",
    "zfnet512": "ZFNet-512",
}
_OURS = ("operator", "graph")
"""Kinds of backends that a library stands behind."""
_KERNELS_OURS = ("tvm",)
"""Compilers: the library runs kernels that the plugin describes."""


def figures(records: Sequence[Mapping[str, Any]]) -> str:
    """For each kind of processor, every network's runs at the newest commit at which there are enough."""
    runs = [r for r in map(Run, records) if r.counts]
    parts = []
    for title, of_processor in grouped(runs, lambda r: r.title):
        rows = [_newest(of_network) for _, of_network in grouped(of_processor, lambda r: r.network)]
        parts.append(_processor(title, sorted(rows, key=lambda row: _place(row[0].network))))
    return "\n\n".join(parts) or f"No run is recorded yet; `{_COMMAND} collect` makes one."


def all_runs(records: Sequence[Mapping[str, Any]]) -> str:
    """Every record in a line, failed ones and those of changed files too, and what it was made with."""
    runs = list(map(Run, records))
    setups: dict[str, int] = {}
    parts = []
    for title, of_processor in grouped(runs, lambda r: r.title):
        peers = sorted({b.name for r in of_processor if not r.is_failed for b in r.peers})
        header = [
            "started (UTC)",
            "commit",
            "network",
            "chosen",
            "Collage, ms",
            "predicted, ms",
            "best backend alone, its time over Collage's",
            "the same as it came",
            *(f"{_name(p)}, called directly" for p in peers),
            "beside every backend alone",
            "turns kept (of these moved), thrown away, waited s",
            "others' CPU",
            "setup",
        ]
        parts += [f"### {title}", markdown(header, [_line(r, peers, setups) for r in of_processor])]
    if not parts:
        return "No run is recorded yet."
    described = [f"{number}. {text}" for text, number in setups.items()]
    return "\n\n".join([*parts, "### Setups", "\n".join(described)])


def _processor(title: str, rows: Sequence[Sequence[Run]]) -> str:
    good = [r for row in rows for r in row if r.is_good]
    if not good:
        return f"**{title}**: {counted(sum(map(len, rows)), 'run')}, none without a failure."
    header = [
        "",
        "runs",
        "libraries chosen",
        "Collage, ms",
        "best backend alone",
        "its time over Collage's",
        "the same as it came",
        "faster than every backend alone",
        "commit",
    ]
    measured = [row for row in rows if any(r.is_good for r in row)]
    alone = sorted({b.backend for r in good for b in r.singles})
    directly = sorted({b.name for r in good for b in r.peers})
    columns = [("optimize", name, _versions(good, name)) for name in alone] + [
        ("bench", name, _versions(good, name)) for name in directly
    ]
    return "\n\n".join(
        [
            f"**{title}**, {_threads(good)}, fp32, batch 1. {_sentence(good)}",
            markdown(header, [_row(row) for row in rows]),
            "The time of each beside Collage's, median of the runs' ratios and their range; "
            "`+`: the reference runs what the library declines:",
            markdown(["", *(c[-1] for c in columns)], [_ratios(row, columns) for row in measured]),
            _legend(good),
        ]
    )


def _sentence(runs: Sequence[Run]) -> str:
    verdicts = Counter(r.verdict for r in runs)
    count = len(runs)
    said = [
        "Collage was faster than every backend alone, beyond what is uncertain, "
        f"in {verdicts[FASTER]} of {counted(count, 'run')}."
    ]
    if verdicts[AHEAD]:
        said.append(
            f"In {verdicts[AHEAD]} more it was faster than all that came near. "
            f"The others took at least {NORMAL.behind:g} times as long, in too few sittings to say more."
        )
    others = [
        f"{verdicts[TIE]} too close to call" if verdicts[TIE] else "",
        f"one library alone chosen in {verdicts[ITSELF]}" if verdicts[ITSELF] else "",
        f"a library alone may be faster in {verdicts[SLOWER]}" if verdicts[SLOWER] else "",
    ]
    if any(others):
        said.append(f"The rest: {'; '.join(filter(None, others))}.")
    return " ".join(said)


def _row(runs: Sequence[Run]) -> list[str]:
    good = [r for r in runs if r.is_good]
    failed = len(runs) - len(good)
    count = str(len(good)) + ("" if _is_enough(runs) else f" of {ENOUGH_RUNS}")
    if failed:
        count += f", {failed} failed"
    name, commit = network_name(runs[0].network), runs[0].commit[:7]
    if not good:
        return [name, count, *["-"] * 6, commit]
    best = [r.singles[0] for r in good if r.singles]
    as_it_came = [ratio for r in good if (ratio := r.best_as_it_came) is not None]
    return [
        name,
        count,
        _how_often([_libraries(r, good) for r in good]),
        _range([r.ms for r in good], _ms),
        _how_often([_label(b) for b in best]) if best else "-",
        _range([b.ratio for b in best], _ratio),
        _range(as_it_came, _ratio),
        f"{sum(r.verdict == FASTER for r in good)} of {len(good)}",
        commit,
    ]


def _ratios(runs: Sequence[Run], columns: Sequence[tuple[str, str, str]]) -> list[str]:
    good = [r for r in runs if r.is_good]
    cells = [network_name(runs[0].network)]
    for report, name, _ in columns:
        found = [
            b
            for r in good
            for b in (r.singles if report == "optimize" else r.peers)
            if (b.backend if report == "optimize" else b.name) == name
        ]
        mark = "+" if any(b.name.endswith(REFERENCE) for b in found) else ""
        cells.append(_range([b.ratio for b in found], _ratio) + mark)
    return cells


def _line(run: Run, peers: Sequence[str], setups: dict[str, int]) -> list[str]:
    record = run.record
    setup = setups.setdefault(_setup(run), len(setups) + 1)
    head = [record["started"], run.commit[:7] + ("" if run.is_clean else ", changed"), run.network]
    sittings = record["sittings"]
    kept, moved, away, waited = (
        sum(s[k] for s in sittings) for k in ("kept", "kept_moved", "thrown_away", "waited_s")
    )
    tail = [f"{kept} ({moved}), {away}, {waited:.0f}", _share(run), str(setup)]
    if run.is_failed:
        failed = record["failed"]
        last = failed["last_lines"][-1] if failed["last_lines"] else ""
        reason = f"{failed['step']} failed ({failed['exit_code']}): {last}"
        return [*head, _cell(reason), *["-"] * (5 + len(peers)), *tail]
    directly = {b.name: b for b in run.peers}
    best = run.singles[0] if run.singles else None
    return [
        *head,
        f"{record['optimize']['chosen']}: {_libraries(run, [run])}",
        _ms(run.ms),
        _ms(record["optimize"]["predicted_ms"]),
        f"{_label(best)} {_uncertain(best)}" if best else "-",
        _ratio(run.best_as_it_came) if run.best_as_it_came is not None else "-",
        *(_uncertain(directly[p]) if p in directly else "-" for p in peers),
        run.verdict,
        *tail,
    ]


def _share(run: Run) -> str:
    return f"{run.others_share:.1%}" + ("" if run.is_quiet else ", disturbed")


def _setup(run: Run) -> str:
    """Everything besides the program that figures depend on, in one line."""
    record = run.record
    software, settings = record["software"], record["settings"]
    of_peers = {b["name"]: b["settings"] for b in software["backends"] if b["kind"] == "peer"}
    parts = [
        f"`collage optimize --effort {settings['effort']}`, {settings['threads'] or 'unknown'} threads",
        *(text for b in software["backends"] if b["kind"] in _OURS for text in _version(software, b["name"])),
        f"Python {software['python']}",
        software["system"],
        *(f"{_name(name)} called directly: {_settings(told)}" for name, told in of_peers.items()),
    ]
    return "; ".join(parts) + "."


def _settings(told: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in told.items())


def _legend(runs: Sequence[Run]) -> str:
    """What the names stand for, with the versions of these runs."""
    kinds = {(b["name"], b["kind"]) for r in runs for b in r.record["software"]["backends"] if b["available"]}
    texts = [_versions(runs, name) for name, kind in sorted(kinds) if kind in _OURS]
    dates = sorted({r.record["started"][:10] for r in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"Backends: {'; '.join(texts)}. Called directly: the library's own runtime on the ONNX file. "
        f"Measured on {when}; medians over runs, their range in brackets. "
        "[Every run](docs/results/evidence.md), with settings."
    )


def _versions(runs: Sequence[Run], name: str) -> str:
    """What a backend or a peer (name with `PEER`) is, and which versions of the library these runs had."""
    told = [r.record["software"] for r in runs]
    return " / ".join(dict.fromkeys(text for software in told for text in _version(software, name)))


def _version(software: Mapping[str, Any], name: str) -> Iterator[str]:
    """Nothing where it was not installed."""
    for b in software["backends"]:
        if (PEER if b["kind"] == "peer" else "") + b["name"] != name:
            continue
        library = b["library_version"]
        if b["kind"] == "peer":
            yield f"{_name(name)} {library}, called directly"
        elif b["kind"] == "graph":
            yield f"{_name(name)} {library}, as a backend"
        elif name in _KERNELS_OURS:
            yield f"{_name(name)} (our kernels, {library})"
        else:
            its = software["onednn"] if name == "dnnl" and software["onednn"] else library
            yield f"{_name(name)} (our plugin over {its})"


def _threads(runs: Sequence[Run]) -> str:
    counts = sorted({r.record["settings"]["threads"] for r in runs})
    return " or ".join(counted(n, "thread") for n in counts)


def _libraries(run: Run, among: Sequence[Run]) -> str:
    """Those that the run's choice is made of, in an order that all runs share."""
    order = Counter[str]()
    for r in among:
        order.update(r.libraries)
    names = sorted(run.libraries, key=lambda n: (-order[n], n))
    return " + ".join(map(_name, names))


def _how_often(texts: Sequence[str]) -> str:
    """Each with its share of all, the commonest first."""
    return ", ".join(f"{text} {n} of {len(texts)}" for text, n in Counter(texts).most_common())


def _range(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """The median, and the least and the greatest of several."""
    if not values:
        return "-"
    least, middle, most = (shown(f(values)) for f in (min, median, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def _uncertain(beside: Beside) -> str:
    half = f" +- {beside.half_interval:.3f}" if beside.half_interval is not None else ""
    return _ratio(beside.ratio) + half


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def _ms(value: float | None) -> str:
    """Three digits or more."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _label(beside: Beside) -> str:
    return _name(beside.backend) + ("+" if beside.name.endswith(REFERENCE) else "")


def _name(name: str) -> str:
    plain = name.removeprefix(PEER)
    return _NAMES.get(plain, plain)


def network_name(name: str) -> str:
    return _NETWORKS.get(name, name)


def _place(network: str) -> int:
    """Known networks in the order of the list, others after them."""
    return list(_NETWORKS).index(network) if network in _NETWORKS else len(_NETWORKS)


def _newest(runs: Sequence[Run]) -> list[Run]:
    """Those of one network that are of one setup and one model, at the newest commit (of two of one date, the
    one that was measured last) at which there are enough of them; at the newest of all where there are
    nowhere. Failed ones of that commit are among them.
    """
    good = [r for r in runs if r.is_good]
    rows = [row for _, row in grouped(good, lambda r: (r.commit, _setup(r), r.record["model_sha256"]))]
    row = max(filter(_is_enough, rows), default=None, key=_age) or max(rows or [list(runs)], key=_age)
    return [*row, *(r for r in runs if r.is_failed and r.commit == row[0].commit and r not in row)]


def _is_enough(runs: Sequence[Run]) -> bool:
    return len({r.hour for r in runs if r.is_good}) >= ENOUGH_RUNS


def _age(runs: Sequence[Run]) -> tuple[datetime, str]:
    """The greater, the newer."""
    return datetime.fromisoformat(runs[0].record["commit"]["date"]), max(r.record["started"] for r in runs)


def grouped(runs: Iterable[Run], key: Callable[[Run], Key]) -> list[tuple[Key, list[Run]]]:
    found: dict[Key, list[Run]] = {}
    for r in runs:
        found.setdefault(key(r), []).append(r)
    return sorted(found.items(), key=lambda item: repr(item[0]))


def _cell(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("|", "\\|")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |", 1) for line in lines)
