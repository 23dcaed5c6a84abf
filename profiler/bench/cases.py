"""Cases of a benchmark: their settings, as JSON too, and the id made of them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from molprof.common.bench_records import digest
from molprof.common.errors import UsageError
from molprof.common.setting import at_least, one_of, rows, setting
from molprof.common.settings import AUTO, DTYPES, CaptureSettings

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
        return self.batch

    def of_batch(self, size: int) -> SdpaCase:
        return replace(self, batch=size)

    def label(self) -> str:
        shape = f"{self.batch}x{self.heads}x{self.kv_heads} {self.queries}:{self.keys} d{self.head_dim}"
        return f"{self.backend} {shape} {self.mask} {self.dtype}"


@dataclass(frozen=True)
class GenerateCase(CaptureSettings):
    """Whole generation: the settings of a capture, and what only a benchmark varies."""

    kind: ClassVar[str] = "generate"

    count: int = setting(
        8,
        decides="input",
        flag="-n",
        metavar="N",
        least=1,
        bench=True,
        help="Generate at least N texts, rounded up to full batches.",
        unset="the largest batch",
    )
    batch_size: int = 8
    compile: str = "off"
    template_threads: int | None = 1
    warmup: int = setting(1, decides="nothing", metavar="N", least=1, bench=True, help="Warm-up passes of a process.")
    passes: int = setting(1, decides="nothing", metavar="N", least=1, bench=True, help="Timed passes of a process.")

    @property
    def rows(self) -> int:
        return self.batch_size

    def of_batch(self, size: int) -> GenerateCase:
        """One batch of another size, in one pass."""
        return replace(self, batch_size=size, count=size, warmup=1, passes=1)

    def label(self) -> str:
        """The case in a few words, without settings that have their default."""
        model = self.model if self.size is None else f"{self.model} {self.size}"
        parts = [model, self.processor or "no processor", f"b{self.batch_size}", self.attention, self.kv_cache]
        named = ("model", "processor", "batch_size", "attention", "kv_cache")
        for name, row in rows(GenerateCase).items():
            if row.axis is not None and name not in named and (value := getattr(self, name)) != row.default:
                parts.append(row.text(value))
        return " ".join(parts)


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
    """Some schemas of a folder, or one constraint, under one engine, without a model."""

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
    rows: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("batches", "constraint"):  # JSON has lists
            value = getattr(self, name)
            object.__setattr__(self, name, value if value is None else tuple(value))

    @property
    def is_one(self) -> bool:
        """Whether it is of one constraint, of which texts are made where it has none."""
        return self.constraint is not None or (self.folder is not None and Path(self.folder).is_file())

    def of_batch(self, size: int) -> MasksCase:
        return self

    def label(self) -> str:
        against = "" if self.other is None else f" against {self.other}"
        if self.constraint is not None:
            return f"{self.engine}{against} {self.tokenizer} {' '.join(self.constraint)}"
        if self.is_one and self.folder is not None:
            return f"{self.engine}{against} {self.tokenizer} {Path(self.folder).name}"
        return f"{self.engine}{against} {self.tokenizer} schemas {self.first + 1} to {self.first + self.count}"


Case = SdpaCase | GenerateCase | MasksCase
_KINDS: dict[str, type[Case]] = {kind.kind: kind for kind in (SdpaCase, GenerateCase, MasksCase)}
# Settings that are always in the JSON of a case, and so in its id.
_ALWAYS = (
    "model", "tokenizer", "processor", "batch_size", "attention", "kv_cache", "compile", "tf32", "cudnn_benchmark",
    "padding_multiple", "count", "smiles", "prompts", "max_new_tokens", "dtype", "device", "warmup", "passes",
    "threads", "trust_remote_code",
)  # fmt: skip


def undivided(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases in groups of which `--share` takes all or none: all engines have the same schemas."""
    groups: dict[Any, list[Case]] = {}
    for case in cases:
        key = (case.tokenizer, case.first) if isinstance(case, MasksCase) else case
        groups.setdefault(key, []).append(case)
    return [*groups.values()]


def to_json(case: Case) -> dict[str, Any]:
    """The case as a JSON object, which `from_json` reads back.

    A setting that is not in `_ALWAYS` has a key only if it differs from its default: a new setting of captures must not
    change the ids of stored results.
    """
    values = asdict(case)
    if isinstance(case, GenerateCase):
        plain = {item.name: item.default for item in fields(case)}
        values = {name: value for name, value in values.items() if name in _ALWAYS or value != plain[name]}
    if isinstance(case, MasksCase):
        plain = {item.name: item.default for item in fields(case)}
        optional = ("batches", "threads", "device", "constraint", "seconds")
        values = {name: value for name, value in values.items() if name not in optional or value != plain[name]}
    return {"kind": case.kind, **values}


def from_json(raw: Mapping[str, Any]) -> Case:
    return _KINDS[raw["kind"]](**{name: value for name, value in raw.items() if name != "kind"})


def case_id(case: Case) -> str:
    return digest(to_json(case))
