"""The contract between core and a backend.

The smallest complete backend::

    class Negate(Backend):
        name = "negate"

        def info(self) -> BackendInfo:
            return BackendInfo(self.name, BackendKind.OPERATOR, version="1.0", library_version=None)

        def patterns(self) -> Sequence[BackendPattern]:
            return [BackendPattern(self.name, is_op("Neg")(wildcard()))]

        def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
            return [plain_variant(subgraph)]

        def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
            return NegateKernel()

    class NegateKernel(Kernel):
        def bind(self, inputs, outputs, workspace, queue):
            def call() -> None:
                np.negative(inputs[0], out=outputs[0])

            return call

Which process calls what: `info`, `patterns`, `rules`, `variants`, `refusal`, `tunable` and `converts` run in
the process of the user and must not load the vendor's library; `supported`, `build`, `build_conversion`,
`compile_ahead` and `tune` run in worker processes, and all but the last two in the process that runs the
finished executable. What its kernels store is restored without it (`collage_run.restoring`).
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from collage_run.kernel import Bound, Kernel, StoredKernel

from collage_core.errors import Refusal
from collage_core.formats import CPU, Format, device_of, plain
from collage_core.ir.subgraph import Subgraph
from collage_core.ir.types import TensorType
from collage_core.target import Target

if TYPE_CHECKING:
    from collage_core.patterns import BackendPattern
    from collage_core.rules import PatternRule

__all__ = [
    "CONTRACT",
    "Backend",
    "BackendInfo",
    "BackendKind",
    "Bound",
    "Kernel",
    "StoredKernel",
    "Tuned",
    "Variant",
    "exact_values",
    "plain_variant",
    "process_environment",
    "rounded_to",
    "rounded_variant",
]

CONTRACT = 1
"""The version of this contract: what core asks of a backend, and hands to it. See docs/versions.md."""


class BackendKind(enum.Enum):
    """What a backend's kernels are (section 1 of the paper)."""

    OPERATOR = "operator"
    """One kernel per group."""
    GRAPH = "graph"
    """A group may be any connected part; the library optimises across its kernels."""
    REFERENCE = "reference"
    """Always feasible, and the answer that the others are compared with."""
    TRANSFER = "transfer"
    """Core's own, one for each device: it brings values there and back, and runs nothing."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What can be told about a backend without loading its library.

    version: of the plugin's package. devices: those that its kernels run on. library_version: of the vendor's
    library, None where it is not installed. reason: why it is not available; None when it is.
    """

    name: str
    kind: BackendKind
    version: str
    library_version: str | None
    devices: tuple[str, ...] = (CPU,)
    reason: str | None = None

    def __post_init__(self) -> None:
        texts = self.name, self.version, self.library_version or "", self.reason or ""
        are_devices = isinstance(self.devices, tuple) and all(isinstance(d, str) for d in self.devices)
        if not isinstance(self.kind, BackendKind) or not all(isinstance(t, str) for t in texts):
            raise TypeError(f"info() tells of no kind, or of what is no text: {self}")
        if not are_devices or not self.devices:
            raise TypeError(f"info() tells the devices {self.devices!r}, which is no tuple of names")

    @property
    def available(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a backend offers to run a subgraph: the formats of `subgraph.inputs` and
    `subgraph.outputs`, in their order.

    Constants are not listed: a kernel gets them when it is built and packs them as it likes. `options` tells
    variants apart that share their formats (an algorithm, a tiling); only the backend reads it.
    """

    inputs: tuple[Format, ...]
    outputs: tuple[Format, ...]
    options: tuple[tuple[str, str], ...] = ()

    @property
    def device(self) -> str:
        """Which works on it."""
        return device_of((*self.inputs, *self.outputs))

    def __str__(self) -> str:
        """For people, and for keys: of a value too long to read (a schedule, say) it holds a digest."""
        text = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return text + "".join(f" {k}={_short(v)}" for k, v in self.options)


_LONGEST_OPTION = 64


def _short(value: str) -> str:
    if len(value) <= _LONGEST_OPTION:
        return value
    return f"#{hashlib.sha256(value.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}"


def plain_variant(subgraph: Subgraph) -> Variant:
    """Everything row-major: the variant that any backend can start with."""
    types = subgraph.graph.type_of
    return Variant(
        tuple(plain(types(v).dtype, types(v).static_shape) for v in subgraph.inputs),
        tuple(plain(types(v).dtype, types(v).static_shape) for v in subgraph.outputs),
    )


def rounded_variant(variant: Variant, dtype: str, *, inputs: bool = True, outputs: bool = True) -> Variant:
    """The same with float32 values stored as `dtype`: those that it reads, those that it yields, or all."""

    def stored(format: Format) -> Format:
        return replace(format, dtype=dtype) if format.dtype == "float32" else format

    return replace(
        variant,
        inputs=tuple(map(stored, variant.inputs)) if inputs else variant.inputs,
        outputs=tuple(map(stored, variant.outputs)) if outputs else variant.outputs,
    )


def rounded_to(subgraph: Subgraph, variant: Variant) -> frozenset[str]:
    """The types in which a variant stores values of other types."""
    return frozenset(f.dtype for v, f in _stored(subgraph, variant) if f.dtype != _own(subgraph, v))


def exact_values(subgraph: Subgraph, variant: Variant) -> frozenset[str]:
    """What a variant reads and yields as it is."""
    return frozenset(v for v, f in _stored(subgraph, variant) if f.dtype == _own(subgraph, v))


def _stored(subgraph: Subgraph, variant: Variant) -> list[tuple[str, Format]]:
    values, formats = (*subgraph.inputs, *subgraph.outputs), (*variant.inputs, *variant.outputs)
    return list(zip(values, formats, strict=True))


def _own(subgraph: Subgraph, value: str) -> str:
    return subgraph.graph.type_of(value).dtype


@dataclass(frozen=True, slots=True)
class Tuned:
    """How far `Backend.tune` has come with a kernel.

    trials: how many ways have been tried so far, in earlier runs too. best_ms: the fastest right one as the
    backend timed it, None if there is none yet. exhausted: nothing is left to try.
    """

    trials: int
    best_ms: float | None = None
    exhausted: bool = False


class Backend(ABC):
    """One library that can run groups of operators. See the module's docstring for the smallest complete
    one.
    """

    name: str
    """Unique, lower case; users and placements refer to it, matched without regard to case."""

    contract: int = 1
    """The version of this contract that it needs (`CONTRACT`); core leaves out whoever needs a later one."""

    compiles_ahead: bool = False
    """Whether it has `compile_ahead`: no process is started for what is not there."""

    stores_kernels: bool = False
    """Whether its kernels are worth being kept on disk for the next process that builds the same: those that
    take longer to build than to read. `collage export` asks `stored` of every backend.
    """

    @abstractmethod
    def info(self) -> BackendInfo:
        """What it is and whether it can run here. Cheap; looks for files and package metadata, loads
        nothing.
        """

    def patterns(self) -> Sequence[BackendPattern]:
        """Subgraphs that it can run, written out."""
        return ()

    def rules(self) -> Sequence[PatternRule]:
        """Subgraphs that it can fuse, as functions that a generator asks."""
        return ()

    @abstractmethod
    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        """The formats in which it offers to run `subgraph`, which one of its patterns or rules has found; or
        why it declines.

        Called for every group found, so that it may look at the neighbours for what is worth offering; but
        whether a variant can be built, and how fast it runs, must depend on the subgraph and the variant
        alone: costs are kept by structural key. Shapes are static. It should offer few variants that are
        likely to win rather than all that are possible: each one is measured.
        """

    def refusal(self, subgraph: Subgraph, variant: Variant, target: Target) -> Refusal | None:
        """Why it would not build this variant, which a placement asks for; None if it would.

        A placement may come from a file that somebody else wrote: `build` is handed nothing that is not
        accepted here. What is offered is; a backend overrides this if it also builds variants that are
        offered somewhere else only. Called as `variants` is.
        """
        offered = self.variants(subgraph, target)
        if isinstance(offered, Refusal):
            return offered
        if variant in offered:
            return None
        return Refusal(f"it does not offer {variant}", subgraph.nodes[0].name)

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        """For each subgraph None, or why the library declines it. Called in a worker, in batches, before
        anything is measured, for what only the library itself can decide."""
        return [None] * len(subgraphs)

    @abstractmethod
    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        """Build the kernel of one offered variant. Constants are `subgraph.graph.constants[name]`, row-major.

        Raises BackendError, or whatever the library raises; the candidate is then infeasible and the message
        its reason. DeclinedError, before anything is built, for a variant that the library does not run well.
        """

    def stored(
        self, kernel: Kernel, subgraph: Subgraph, variant: Variant, target: Target
    ) -> StoredKernel | None:
        """What `kernel`, which `build` has made of these, can be restored from elsewhere (`collage export`);
        None where that cannot be. `Kernel.stored` tells, unless it has to do without what it was built from.
        """
        return kernel.stored()

    def compile_ahead(self, subgraph: Subgraph, variant: Variant, target: Target) -> None:
        """Compile what `build` of the same will want, and put it where that finds it: on disk (see
        `folders.user_folder`). Constants that `build` only packs need not be looked at.

        Called in several worker processes at once, while nothing is timed, before many kernels are measured.
        Kernels that differ in nothing but such constants are to be compiled once: where another process is at
        it, this one need not wait. May raise, hang or crash: `build` is asked all the same, and will tell.
        """
        raise NotImplementedError

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        """Whether it offers to convert a value of `type` from one format into another."""
        return False

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        """Build the kernel (one input, one output, same logical shape) of a conversion that `converts`
        offered.
        """
        raise NotImplementedError

    def offers_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> bool:
        """Whether core may ask for it: `converts` says so, and it runs on the devices that both lie on."""
        there = {source.device, destination.device} <= {*self.info().devices}
        return there and self.converts(type, source, destination, target)

    def tunable(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        """Variants of `subgraph` that `tune` could find better kernels for, without options; or why there is
        nothing to tune. Called as `variants` is; what it returns need not be offered there yet.
        """
        return Refusal(f"{self.name} tunes nothing")

    def tune(self, subgraph: Subgraph, variant: Variant, target: Target, trials: int) -> Tuned:
        """Try some more ways to run a variant that `tunable` named, up to `trials` of them in all; with 0
        only tell what is known.

        Called in a worker with the machine to itself, again and again until `trials` are reached or nothing
        is left; each call should take some ten seconds. The process may be killed at any time, in a call too:
        what was tried is kept as it is tried (see `folders.user_folder`), and the next call goes on from
        there. What it finds is offered by `variants` from then on, with options that change when something
        better is found.

        Raises BackendError, or whatever the library raises: this kernel is then not tuned any further.
        """
        raise NotImplementedError

    def environment(self, target: Target) -> Mapping[str, str]:
        """Environment variables that its library must find when it is loaded (threads, waiting policy).

        Set before a worker starts, and before the library is loaded in the user's process where they are not
        set yet.
        """
        return {}

    def environment_beside(self, target: Target) -> Mapping[str, str]:
        """Further ones, for a process in which kernels of other libraries run as well: how their threads wait
        while its own work, say.
        """
        return {}


def process_environment(backends: Iterable[Backend], target: Target) -> dict[str, str]:
    """What libraries must find in a process in which kernels of all these backends run."""
    backends = list(backends)
    found = {name: value for b in backends for name, value in b.environment(target).items()}
    if sum(b.info().kind is not BackendKind.REFERENCE for b in backends) > 1:
        found |= {name: value for b in backends for name, value in b.environment_beside(target).items()}
    return found
