"""What a file of benchmark results holds, and its one reader. Format: docs/benchmarks.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from molprof.common.errors import MolprofError, TraceError, UsageError
from molprof.common.manifest import Machine
from molprof.common.typed_json import read_typed

SCHEMA = 2
GENERATE, SDPA, MASKS = "generate", "sdpa", "masks"
_DIGEST_LETTERS = 12
_ACCEPTED = "use a file that molprof bench -o wrote"
# Nanoseconds, bytes and counts.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_T = TypeVar("_T")


@dataclass(frozen=True)
class GenerationFigures:
    """What one process measured of whole generation; None: not recorded."""

    # wall_ns, phases_ns, compiles, compile_ns: of each timed pass; phases in host time, compiles in frames
    wall_ns: list[Whole]
    phases_ns: list[dict[str, Whole]]
    tokens: Whole  # generated in one pass, end tokens included
    steps: Whole
    load_ns: Whole | None = None
    # warmup_ns, warmup_compiles, warmup_compile_ns: of each warm-up pass
    warmup_ns: list[Whole] = field(default_factory=list)
    warmup_compiles: list[Whole | None] = field(default_factory=list)
    warmup_compile_ns: list[Whole | None] = field(default_factory=list)
    compiles: list[Whole | None] = field(default_factory=list)
    compile_ns: list[Whole | None] = field(default_factory=list)
    graph_breaks: Whole | None = None
    graph_cache_hits: Whole | None = None
    graph_cache_misses: Whole | None = None
    row_steps: Whole | None = None
    peak_memory_bytes: Whole | None = None
    peak_memory_of: str | None = None
    kv_cache_bytes: Whole | None = None
    molecules: Whole | None = None
    valid_molecules: Whole | None = None
    text_digest: str | None = None
    machine: Machine | None = None  # what else it did during each timed pass

    def __post_init__(self) -> None:
        if not self.wall_ns or min(self.wall_ns) <= 0 or self.tokens <= 0:
            raise TraceError("no timed pass, or no token")


@dataclass(frozen=True)
class SdpaFigures:
    """What one process measured of the attention kernel; None: not recorded."""

    times_ns: list[Whole]  # of each timed call
    flops: Whole  # floating-point operations of a call
    bytes: Whole  # the least that a call must move
    first_call_ns: Whole | None = None
    chosen: str | None = None  # the kernel that torch chose for backend `auto`
    largest_error: float | None = None  # the largest difference to the math kernel in float32
    peak_memory_bytes: Whole | None = None
    compiles: Whole | None = None
    machine: Machine | None = None  # what else it did during the timed calls

    def __post_init__(self) -> None:
        if not self.times_ns or min(self.times_ns) <= 0:
            raise TraceError("no timed call")


Runs = list[tuple[str, Whole]]  # of tokens: what they have in common, and how many follow one another


@dataclass(frozen=True)
class MaskedInstance:
    """An engine along one instance: a mask before each token and before the end, until one forbids the next token."""

    description: str
    valid: bool | None  # by the validator; None: only a format is wrong
    tokens: Whole
    accepted: bool  # every token and the end were allowed
    mask_ns: list[Whole]  # to fill each
    accept_ns: list[Whole]  # of the tokens that were allowed
    forced: Whole  # masks that allow one token
    forced_text: Whole  # masks whose tokens all begin one text, these included
    states: Runs  # of each mask: key, string, number, literal, structure or end
    keywords: Runs  # the keyword of the schema that governs the value
    declared: bool | None = None  # valid by the file; None: it does not say
    apply_ns: list[Whole] = field(default_factory=list)  # of each mask, to the scores; empty if not recorded
    stopped_at: str | None = None  # a bar before the forbidden token; None if all were accepted
    error: str | None = None  # the engine failed there

    def __post_init__(self) -> None:
        for runs in (self.states, self.keywords):
            if sum(count for _, count in runs) != len(self.mask_ns):
                raise TraceError("masks without a state or a keyword")


@dataclass(frozen=True)
class MaskedBatch:
    """Steps of rows that stand at places spread over one instance: tokens accepted, masks filled and applied."""

    rows: Whole
    threads: Whole | None  # that fill; None: as the package does
    # accept_ns, fill_ns, apply_ns: of each step. Where one kernel does all of it, that is `apply_ns`; empty if unknown
    fill_ns: list[Whole]
    accept_ns: list[Whole] = field(default_factory=list)
    apply_ns: list[Whole] = field(default_factory=list)
    device: str = "cpu"  # of the scores
    instance: str = ""  # by its description

    @property
    def total_ns(self) -> list[int]:
        """Of each step."""
        parts = [part for part in (self.accept_ns, self.fill_ns, self.apply_ns) if part]
        return [sum(times) for times in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Difference:
    """A token that one of two engines allows after a prefix."""

    instance: str
    prefix: str  # its last characters
    token: str
    allowed_by: str
    verdict: str  # `right`, `wrong` or `not shown`
    why: str  # the text that shows it


@dataclass(frozen=True)
class MaskedSchema:
    """What one process measured of a schema; None: not recorded."""

    name: str
    status: str  # `ok`, `refused` by the engine, `not judged`, or how it ended the process
    message: str | None = None
    compile_ns: Whole | None = None
    first_mask_ns: Whole | None = None  # from the schema on
    memory_bytes: Whole | None = None  # resident, most until the first mask
    instances: list[MaskedInstance] = field(default_factory=list)
    left_out: Whole = 0  # instances that were not followed for time
    batches: list[MaskedBatch] = field(default_factory=list)
    # Of two engines: prefixes of valid instances, those after which their masks differ, tokens that one alone allows
    prefixes: Whole | None = None
    differing: Whole | None = None
    only: dict[str, Whole] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    # By engine: tokens of small masks, and those that the tokenizer would not write there
    looked: dict[str, Whole] = field(default_factory=dict)
    unusual: dict[str, Whole] = field(default_factory=dict)


@dataclass(frozen=True)
class MaskFigures:
    """What one process measured of an engine, or of two; then nothing is timed."""

    schemas: list[MaskedSchema]
    version: str  # of the packages
    vocabulary_ns: Whole | None = None  # to make what is the same for every constraint; None: nothing, or not recorded


@dataclass(frozen=True)
class Result:
    """One process of a case."""

    case: str
    label: str
    settings: dict[str, Any]  # of the case, `kind` first
    environment: str
    repeat: int
    status: str  # `ok`, `failed`, `timed out`, `out of memory`, `not measured` or `unsupported`
    message: str | None = None
    stack: list[str] | None = None
    wall_s: float | None = None
    figures: dict[str, Any] | None = None  # None unless the status is ok
    largest_batch: int | None = None  # the largest that fits, if the case was out of memory
    fit_exact: bool | None = None  # no larger one fits

    @property
    def kind(self) -> str:
        return str(self.settings.get("kind"))

    def read_figures(self, kind: type[_T]) -> _T:
        """Return the figures as `GenerationFigures`, `SdpaFigures` or `MaskFigures`."""
        return read_typed(self.figures, kind, f"case {self.case}: figures", _ACCEPTED)


@dataclass(frozen=True)
class Results:
    """A file of results."""

    environments: dict[str, dict[str, Any]] = field(default_factory=dict)  # hardware and versions by id
    runs: tuple[dict[str, Any], ...] = ()  # the runs that added to the file: command, seed, repeats, limits
    results: tuple[Result, ...] = ()
    lines: tuple[dict[str, Any], ...] = ()  # the results as the file has them, with keys that `Result` does not have
    notes: tuple[str, ...] = ()  # what the reader should know about the file


@dataclass(frozen=True)
class _Head:
    schema: int
    record: str


@dataclass(frozen=True)
class _Environment:
    id: str
    environment: dict[str, Any]


def digest(content: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits, equal for equal JSON on any machine."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]


def read_results(path: Path, to_add: bool = False) -> Results:
    """Return all records of a file, without a last line that was cut off.

    With `to_add`, results will be added to the file: it may be empty, and a wrong file is a wrong option (UsageError,
    else TraceError).
    """
    error: type[MolprofError] = UsageError if to_add else TraceError
    hint = f"{_ACCEPTED}, or a new one" if to_add else _ACCEPTED
    try:
        *lines, cut = path.read_bytes().split(b"\n")
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}", hint) from problem
    if cut and not lines:
        raise error(f"{path} is not a file of benchmark results", hint)
    environments: dict[str, dict[str, Any]] = {}
    runs, results, raws = [], [], []
    for number, line in enumerate(lines, start=1):
        where = f"{path} line {number}"
        try:
            raw = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise error(f"{where} is not JSON: {problem}", hint) from problem
        head = read_typed(raw, _Head, f"{where} is not a benchmark record", hint, error)
        if head.schema != SCHEMA:
            text = f"{where} is of schema {head.schema}; this molprof reads {SCHEMA}"
            newer = "pip install --upgrade molprof" if head.schema > SCHEMA else "measure again with molprof bench"
            raise error(text, "name a new file with -o" if to_add else newer)
        if head.record == "environment":
            described = read_typed(raw, _Environment, where, hint, error)
            environments[described.id] = described.environment
        elif head.record == "run":
            runs.append(raw)
        elif head.record == "result":
            results.append(read_typed(raw, Result, where, hint, error))
            raws.append(raw)
    if not (to_add or results or environments):
        raise error(f"{path} holds no benchmark results", hint)
    notes = (f"{path} ends inside line {len(lines) + 1}, which is left out",) if cut else ()
    return Results(environments, tuple(runs), tuple(results), tuple(raws), notes)
