"""Cases of a benchmark: their settings, as objects and JSON, and ids made of them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from molprof.common.bench_records import GENERATE, digest, settings_json
from molprof.common.engine_settings import AUTO
from molprof.common.errors import UsageError
from molprof.common.setting import at_least, one_of
from molprof.common.settings import DTYPES, CaptureSettings

BACKENDS = (AUTO, "math", "flash", "efficient", "cudnn", "flash-attn", "flash-attn-3", "flex")
MASKS = ("none", "causal", "padding")


@dataclass(frozen=True)
class SdpaCase:
    """A case of the attention kernel alone."""

    kind: ClassVar[str] = "sdpa"

    backend: str  # one of `BACKENDS`; `auto` leaves the choice to torch
    batch: int
    heads: int
    kv_heads: int
    queries: int  # query tokens per row: the sequence in a prefill, 1 in a decode step
    keys: int  # key tokens per row
    head_dim: int
    mask: str = "none"  # `causal`: the kernel's own argument; `padding`: that of `sdpa.padding_mask`
    dtype: str = AUTO
    device: str = AUTO
    threads: int | None = None  # CPU threads for torch; None: torch's own choice

    def __post_init__(self) -> None:
        one_of("backend", self.backend, BACKENDS)
        one_of("mask", self.mask, MASKS)
        one_of("dtype", self.dtype, DTYPES)
        for name in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim"):
            at_least(name.replace("_", " "), getattr(self, name), 1)
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} heads cannot share {self.kv_heads} KV heads", "a divisor of the heads")
        if self.mask == "causal" and self.queries != self.keys:
            raise UsageError(
                f"a causal mask of {self.queries} queries over {self.keys} keys has no agreed meaning",
                hint="use as many queries as keys, or mask 'none' for a decode step",
            )

    @property
    def rows(self) -> int:
        """The rows of the batch."""
        return self.batch

    def of_batch(self, size: int) -> SdpaCase:
        """Return the case with this batch size."""
        return replace(self, batch=size)

    def label(self) -> str:
        """Return the name of the case."""
        shape = f"{self.batch}x{self.heads}x{self.kv_heads} {self.queries}:{self.keys} d{self.head_dim}"
        return f"{self.backend} {shape} {self.mask} {self.dtype}"


@dataclass(frozen=True)
class LineCase:
    """A command line of a sweep, such as a capture."""

    name: str  # of what it writes, without ending; of a process after the first with its number
    arguments: tuple[str, ...]  # what follows `molprof`, without the output
    folder: str
    ending: str
    options: Mapping[str, Any]  # the values that it takes from the grid
    settings: CaptureSettings | None = None  # of a capture
    reason: str | None = None  # why it cannot run
    own: tuple[str, ...] = ()  # arguments that a continued sweep may change

    @property
    def rows(self) -> int:
        """The rows of its batches; 1 where nothing is measured."""
        return self.settings.batch_size if self.settings is not None and self.settings.timed_only else 1

    @property
    def is_measured(self) -> bool:
        """True if it is a capture without a recorded pass, whose manifest is the result."""
        return self.settings is not None and self.settings.timed_only

    def of_batch(self, size: int) -> LineCase:
        """Return the case with one batch of another size, in one pass."""
        words = ("--batch-size", str(size), "-n", str(size), "--warmup", "1", "--repeats", "1", "--fill")
        settings = None if self.settings is None else replace(self.settings, batch_size=size, count=size)
        return replace(self, arguments=(*self.arguments, *words), settings=settings)

    def output(self, repeat: int = 0) -> str:
        """Return the file that a process writes, in the folder."""
        return f"{self.name}{f'.{repeat + 1}' if repeat else ''}{self.ending}"

    def line(self, output: Path) -> list[str]:
        """Return the command line."""
        return [*self.arguments, "-o", str(output), *self.own]

    def label(self) -> str:
        """Return the name of the case."""
        return self.name


# Engines that constrain by a JSON schema -> the class, a `Processor` with `compile` and `begin`, as `EngineProcessor`
# has, made with a target and a function; and what its package is imported as, if it has one.
ENGINES = {
    "xgrammar": ("engines:XGrammar", "xgrammar"),
    "llguidance": ("engines:LLGuidance", "llguidance"),
    "outlines-core": ("engines:Outlines", "outlines_core"),
    "lm-format-enforcer": ("engines:LMFormatEnforcer", "lmformatenforcer"),
    "table": ("constraint:ConstraintProcessor", None),
}


@dataclass(frozen=True)
class MasksCase:
    """Some schemas of a folder, or one constraint, with one engine, without a model."""

    kind: ClassVar[str] = "masks"

    engine: str  # one of `ENGINES`
    tokenizer: str
    folder: str | None  # or the file of one schema; None: molprof's own schemas, or `constraint`
    first: int  # its schemas by name, from this one on
    count: int
    content: str  # a digest of them
    other: str | None = None  # the engine whose masks are compared; then nothing is timed
    batches: tuple[int, ...] = ()  # rows of batches that are measured too
    threads: int | None = None  # those are filled as the package does, and where it can, with one and so many threads
    device: str = AUTO  # of their scores: the CPU, and where there is a GPU that too
    constraint: tuple[str, str] | None = None  # kind and text, of one that is no schema
    seconds: float | None = None  # of a schema, after which no more of its texts and steps are measured; None: no limit
    tools: str | None = None  # a file of tools in place of schemas; empty: molprof's own sets
    rows: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("batches", "constraint"):  # JSON has lists
            value = getattr(self, name)
            object.__setattr__(self, name, value if value is None else tuple(value))

    @property
    def is_one(self) -> bool:
        """Return True if the case has a single constraint, whose texts are generated where it has none."""
        return self.constraint is not None or (self.folder is not None and Path(self.folder).is_file())

    def of_batch(self, size: int) -> MasksCase:
        """Return the case itself: it has no batch size."""
        return self

    def label(self) -> str:
        """Return the name of the case."""
        against = "" if self.other is None else f" against {self.other}"
        if self.constraint is not None:
            return f"{self.engine}{against} {self.tokenizer} {' '.join(self.constraint)}"
        if self.is_one and self.folder is not None:
            return f"{self.engine}{against} {self.tokenizer} {Path(self.folder).name}"
        if self.tools is not None:
            return f"{self.engine} {self.tokenizer} {Path(self.tools).name if self.tools else 'sets of tools'}"
        return f"{self.engine}{against} {self.tokenizer} schemas {self.first + 1} to {self.first + self.count}"


KernelCase = SdpaCase | MasksCase
Case = KernelCase | LineCase
_KINDS: dict[str, type[KernelCase]] = {kind.kind: kind for kind in (SdpaCase, MasksCase)}


def undivided(cases: Sequence[Case]) -> list[list[Case]]:
    """Return the cases in groups of which `--share` takes all or none: all engines have the same schemas."""
    groups: dict[Any, list[Case]] = {}
    for case in cases:
        key = (case.tokenizer, case.first) if isinstance(case, MasksCase) else case
        groups.setdefault(key, []).append(case)
    return [*groups.values()]


def to_json(case: Case) -> dict[str, Any]:
    """Return the settings of a case as a JSON object; `from_json` reads that of kernels and masks.

    What has its default is left out where it is optional, so that a new setting leaves the ids of stored results.
    """
    if isinstance(case, LineCase):
        kind = GENERATE if case.is_measured else case.arguments[0]
        return {"kind": kind, **({} if case.settings is None else settings_json(case.settings))}
    values = asdict(case)
    if isinstance(case, MasksCase):
        plain = {item.name: item.default for item in fields(case)}
        optional = ("batches", "threads", "device", "constraint", "seconds", "tools")
        values = {name: value for name, value in values.items() if name not in optional or value != plain[name]}
    return {"kind": case.kind, **values}


def from_json(raw: Mapping[str, Any]) -> KernelCase:
    """Return the case of its JSON."""
    return _KINDS[raw["kind"]](**{name: value for name, value in raw.items() if name != "kind"})


def case_id(case: Case) -> str:
    """Return the id of a case, a digest of its settings."""
    return case.name if isinstance(case, LineCase) else digest(to_json(case))
