"""The project's commands. `python -m nox -s tests` is what must pass; `python -m nox -l` lists the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
PLUGINS = sorted(p.parent.relative_to(ROOT) for p in ROOT.glob("plugins/*/pyproject.toml"))
PACKAGES = [Path("."), Path("run"), Path("page"), *PLUGINS, Path("benchmarks"), Path("conformance")]
# It brings others, and holds no code.
META = Path("meta")
# Read and tested where they lie.
EXAMPLES = sorted(p.parent.relative_to(ROOT) for p in ROOT.glob("examples/*/pyproject.toml"))
# What the tests need beyond what a package cannot do without.
EXTRAS = {"collage_cuda": "[gpu]", "collage_tvm": "[tune]"}
# What plugins need to ask NVIDIA's libraries.
GPU_EXTRAS = {
    "collage_cuda": "[gpu]",
    "collage_cublas": "[gpu]",
    "collage_cudnn": "[gpu]",
    "collage_tensorrt": "[gpu]",
    "collage_tvm": "[cuda]",
}
DEMO = [
    Path("."),
    Path("run"),
    *(Path("plugins", f"collage_{name}") for name in ("dnnl", "tvm", "ncnn", "onnxruntime")),
    Path("benchmarks"),
]

# docs/adr/0010 (ortools: a second opinion on the search), 0023 (pytest-xdist), 0044 (selenium).
TEST_TOOLS = ["pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "ortools>=9.15", "selenium>=4.20"]
IN_PROCESSES = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
# docs/adr/0040: the API reference.
DOCS_TOOLS = ["mkdocs>=1.6,<2", "mkdocstrings[python]>=0.30"]
# What kernels are compared with; the CPU build, where the index has one.
TORCH = "torch==2.13.0"
# Exact, for what they complain about changes from one version to the next.
RUFF, MYPY = "ruff==0.17.5", "mypy==2.4.1"


@nox.session
def tests(session: nox.Session) -> None:
    """What is asked of every change, in up to four processes; arguments go to pytest."""
    _install_editable(session, *TEST_TOOLS)
    _run_tier(session, "not (ci or slow)")


@nox.session
def ci(session: nox.Session) -> None:
    """Heavier tests, and those of what a user has: packages installed, nothing switched off. Then `torch`."""
    if all(a.startswith("--seconds") for a in session.posargs):
        session.notify("torch", [])
    session.install(*(f"./{p}{EXTRAS.get(p.name, '')}" for p in PACKAGES), *TEST_TOOLS, *DOCS_TOOLS)
    _run_tier(session, "ci")


@nox.session
def torch(session: nox.Session) -> None:
    """What needs PyTorch of `ci`; arguments go to pytest. It has its own environment: TVM loads PyTorch where
    it is, so that every process starts three seconds later, and warnings are shown otherwise.
    """
    _install_editable(session, *TEST_TOOLS, extras={**EXTRAS, "collage_torch": "[torch]"})
    of_torch = ["plugins/collage_torch/tests", "tests/test_docs.py::test_the_way_from_pytorch_to_a_server"]
    session.run("pytest", *IN_PROCESSES, "-m", "ci", *of_torch, *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """All tests, the slow ones too, in processes; then `torch` and the fuzz."""
    # First: they run whatever the tests say.
    slow = [f"benchmarks/tests/test_{name}.py" for name in ("torch_code", "kernels")]
    session.notify("torch", ["-m", "", *slow])
    session.notify("fuzz", [])
    _install_editable(session, *TEST_TOOLS, *DOCS_TOOLS)
    session.run("pytest", *IN_PROCESSES, "--hypothesis-profile=exploring", *session.posargs)


@nox.session
def gpu_offline(session: nox.Session) -> None:
    """What NVIDIA's real libraries can be asked without a GPU: plugins' tests, then the table of networks in
    docs/results/gpu-offline, written anew. It installs 1.5 GB; arguments go to benchmarks/gpu_offline.py.
    """
    folders = [Path("plugins", name) for name in GPU_EXTRAS]
    packages = [Path("."), Path("run"), *folders, Path("benchmarks"), Path("conformance")]
    extras = (f"./{p}{GPU_EXTRAS.get(p.name, '')}" for p in packages)
    session.install(*(argument for p in extras for argument in ("-e", p)), *TEST_TOOLS)
    of_tvm = map(str, sorted(Path("plugins/collage_tvm/tests").glob("test_tvm_cuda*.py")))
    session.run("pytest", *IN_PROCESSES, *(f"{p}/tests" for p in folders if p.name != "collage_tvm"), *of_tvm)
    session.run("python", "benchmarks/gpu_offline.py", "--out", "docs/results/gpu-offline", *session.posargs)


@nox.session
def kit(session: nox.Session) -> None:
    """The kit of each backend here, or of those named (`-- mkl ncnn`): tables in READMEs, written anew."""
    _install_editable(session, *TEST_TOOLS)
    plugins = {p.name.removeprefix("collage_"): p for p in PLUGINS}
    names = [name for name, p in plugins.items() if (p / "tests" / f"test_{name}_kit.py").exists()]
    for name in session.posargs or names:
        folder = f"plugins/collage_{name}"
        table = f"--collage-readme={folder}/README.md"
        # A table tells of what failed, too.
        session.run(
            *("pytest", "-n", "auto", f"{folder}/tests/test_{name}_kit.py", table), success_codes=[0, 1]
        )


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, with the API reference, as a site in site/; `-- serve` shows it as it is written."""
    session.install(*DOCS_TOOLS)
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]))


@nox.session
def operators(session: nox.Session) -> None:
    """docs/operators.md, written anew; arguments go to benchmarks/operators_table.py."""
    _install_editable(session, *TEST_TOOLS)
    session.run("python", "benchmarks/operators_table.py", *session.posargs)


@nox.session
def architectures(session: nox.Session) -> None:
    """Networks that PyTorch exports, placed and compared: docs/results/architectures.md, written anew. Takes
    some forty minutes; arguments are names of architectures.
    """
    _install_editable(session, extras={**EXTRAS, "benchmarks": "[architectures]"})
    session.run("python", "-m", "collage_benchmarks.architectures", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """1,000 random models of our own and 500 of NNSmith's through every backend, new ones with `-- SEED`."""
    _install_editable(session, extras={**EXTRAS, "benchmarks": "[fuzz]"})
    seed = session.posargs[0] if session.posargs else "1"
    folder = Path(session.create_tmp())
    models = str(folder / "nnsmith")
    session.run("python", "-m", "collage_benchmarks.fuzz.nnsmith", models, "--models", "500", "--seed", seed)
    for name, source, count in (("generator", "generator", "1000"), ("nnsmith", models, "500")):
        report = ("--json", str(folder / f"{name}.json"), "--finds", str(folder / f"finds-{name}"))
        told = ("--source", source, "--models", count, "--seed", seed, *report)
        session.run("python", "-m", "collage_benchmarks.fuzz", *told)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format. `nox -s lint -- --fix` repairs what can be repaired."""
    session.install(RUFF)
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")


@nox.session
def types(session: nox.Session) -> None:
    """Static types, tests included."""
    _install_editable(session, MYPY, "hatchling", "nox", *TEST_TOOLS)
    # One package at a time: several have a module tests.conftest.
    for sources in (
        ["collage_core", "collage_cli", "tests", "conftest.py", "noxfile.py"],
        *([str(p)] for p in (*PACKAGES[1:], *EXAMPLES)),
    ):
        session.run("mypy", *sources, *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """A network, placed and compared on this machine; arguments go to the demo."""
    session.install(*(f"./{p}" for p in DEMO))
    # -P: what was installed runs, not the working tree.
    session.run("python", "-P", "-m", "collage_benchmarks.demo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Against ONNX Runtime, on the networks named (ResNeXt50 and BERT otherwise); `-- tvm`: TVM's kernels
    beside torch, NumPy and oneDNN; `-- bert`: BERT-base beside its bare matrix products; `-- alone`
    and `-- ablation`: what several libraries bring, one after the other. Further arguments go to these
    scripts.
    """
    session.install(*(f"./{p}" for p in DEMO))
    if session.posargs[:1] == ["tvm"]:
        session.install(TORCH)
        session.run("python", "-P", "benchmarks/kernels/bench_kernels.py", *session.posargs[1:])
        return
    if session.posargs[:1] == ["bert"]:
        session.run("python", "-P", "benchmarks/bert_matmuls.py", *session.posargs[1:])
        return
    if session.posargs and session.posargs[0] in ("alone", "ablation"):
        session.install(*(f"./{p}" for p in PACKAGES))
        session.run("python", "-P", "benchmarks/two_level.py", *session.posargs)
        return
    folder = Path(session.create_tmp())
    for name in session.posargs or ["resnext50", "bert_encoder"]:
        model = str(folder / f"{name}.onnx")
        session.run("python", "-P", "-m", "collage_benchmarks.networks", name, "-o", model)
        session.run("collage", "bench", model, "--against", "onnxruntime", "--threads", "2", "--json")


@nox.session
def build(session: nox.Session) -> None:
    """Wheels of every package in dist/, which then run the first network without the sources."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for package in (*PACKAGES, META):
        session.run("python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(dist), f"./{package}")
    ours = [str(w) for w in sorted(dist.glob("*.whl"))]
    # What they depend on goes into a folder beside, so that the installation below has nothing but folders.
    others = session.create_tmp()
    session.run("python", "-m", "pip", "wheel", "--wheel-dir", others, *ours)
    session.install("--no-index", "--find-links", others, *ours)
    session.chdir(others)
    session.run("python", "-P", "-m", "collage_benchmarks.demo", "resnext50", *session.posargs)


def _run_tier(session: nox.Session, marked: str) -> None:
    """Tests by their markers, beside what they took before unless only some are asked for."""
    seconds = [] if session.posargs else ["--seconds=compare"]
    # Not `python -m`: what was installed is tested, not the working tree. Some that are asked for by name may
    # be of another tier: 5 is pytest's status where there are none.
    command = ("pytest", *IN_PROCESSES, "-m", marked, "--durations=20", *seconds, *session.posargs)
    session.run(*command, success_codes=[0, 5] if session.posargs else [0])


def _install_editable(session: nox.Session, *tools: str, extras: dict[str, str] = EXTRAS) -> None:
    """All packages in one go, so that they find each other rather than something on an index."""
    packages = (f"./{p}{extras.get(p.name, '')}" for p in PACKAGES)
    session.install(*(argument for p in packages for argument in ("-e", p)), *tools)
