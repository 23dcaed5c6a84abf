"""The file of benchmark results as typed records: JSON lines, each checked. See docs/benchmarks.md for the schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from molprof.common.errors import TraceError

SCHEMA = 1
OK = "ok"
_ACCEPTED = "a file that molprof bench -o wrote"
# Nanoseconds, bytes and counts: none is below 0, and what is above this was never measured.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True)
class GenerationFigures:
    """What one process measured of whole generation; a field that is None was not recorded.

    Attributes:
        wall_ns: of each timed pass; phases_ns: host time by phase of each.
        warmup_ns: of each pass before them; compile_ns: the part of a pass in torch.compile, compiles: frames.
        tokens: generated in one pass, end tokens included.
    """

    wall_ns: list[Whole]
    phases_ns: list[dict[str, Whole]]
    tokens: Whole
    steps: Whole
    load_ns: Whole | None = None
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


@dataclass(frozen=True)
class SdpaFigures:
    """What one process measured of the attention kernel.

    Attributes:
        times_ns: of each timed call.
        flops, bytes: floating-point operations of a call, and bytes that it must move at least.
        chosen: the kernel that torch chose, where it was left to it.
        largest_error: the largest difference to the math kernel in float32.
    """

    times_ns: list[Whole]
    flops: Whole
    bytes: Whole
    first_call_ns: Whole | None = None
    chosen: str | None = None
    largest_error: float | None = None
    peak_memory_bytes: Whole | None = None
    compiles: Whole | None = None


@dataclass(frozen=True)
class Result:
    """One process of a case.

    Attributes:
        settings: of the case, `kind` first.
        figures: None where it is not ok.
        load: processes that ran or waited for a core when it began, mean over a minute.
        largest_batch: the largest that fits, where it was out of memory and looked for.
    """

    case: str
    label: str
    settings: dict[str, Any]
    environment: str
    repeat: int
    status: str
    message: str | None = None
    stack: list[str] | None = None
    wall_s: float | None = None
    load: float | None = None
    figures: dict[str, Any] | None = None
    largest_batch: int | None = None
    fit_exact: bool | None = None

    @property
    def kind(self) -> str:
        """`sdpa` or `generate`."""
        return str(self.settings.get("kind"))


@dataclass(frozen=True)
class Results:
    """A file of results.

    Attributes:
        environments: hardware and versions by id.
        runs: the runs that added to it: command, seed, repeats, limits.
        notes: what the reader should know about the file.
    """

    environments: dict[str, dict[str, Any]]
    runs: tuple[dict[str, Any], ...]
    results: tuple[Result, ...]
    notes: tuple[str, ...]


def read_results(path: Path) -> Results:
    """All lines of the file; one that was cut off at its end is left out, with a note.

    Raises:
        TraceError: the file cannot be read, is none of these, or is of a newer schema.
    """
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise TraceError(f"cannot read {path}: {problem.strerror}", hint=_ACCEPTED) from problem
    environments: dict[str, dict[str, Any]] = {}
    runs, results, notes = [], [], []
    lines = data.split(b"\n")
    if lines[-1]:
        notes.append(f"{path} ends inside line {len(lines)}, which is left out: whoever wrote it was stopped")
    for number, line in enumerate(lines[:-1], start=1):
        where = f"{path} line {number}"
        raw = _decoded(line, where)
        kind = raw.get("record")
        if kind == "environment" and isinstance(raw.get("id"), str) and isinstance(raw.get("environment"), dict):
            environments[raw["id"]] = raw["environment"]
        elif kind == "run":
            runs.append(raw)
        elif kind == "result":
            results.append(_typed(raw, Result, where))
    if not results and not environments:
        raise TraceError(f"{path} holds no benchmark results", hint=_ACCEPTED)
    return Results(environments, tuple(runs), tuple(results), tuple(notes))


def generation_figures(result: Result) -> GenerationFigures:
    """Raises TraceError where they are not what they should be."""
    found: GenerationFigures = _typed(result.figures, GenerationFigures, f"case {result.case}: figures")
    if not found.wall_ns or min(found.wall_ns) <= 0 or found.tokens <= 0:
        raise TraceError(f"case {result.case}: no timed pass, or no token", hint=_ACCEPTED)
    return found


def sdpa_figures(result: Result) -> SdpaFigures:
    """Raises TraceError where they are not what they should be."""
    found: SdpaFigures = _typed(result.figures, SdpaFigures, f"case {result.case}: figures")
    if not found.times_ns or min(found.times_ns) <= 0:
        raise TraceError(f"case {result.case}: no timed call", hint=_ACCEPTED)
    return found


def _decoded(line: bytes, where: str) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise TraceError(f"{where} is not JSON: {problem}", hint=_ACCEPTED) from problem
    if not isinstance(raw, dict) or not isinstance(raw.get("schema"), int):
        raise TraceError(f"{where} is not a benchmark record", hint=_ACCEPTED)
    if raw["schema"] > SCHEMA:
        raise TraceError(
            f"{where} is of schema {raw['schema']}; this molprof reads up to {SCHEMA}",
            hint="pip install --upgrade molprof",
        )
    return raw


def _typed(raw: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as problem:
        raise TraceError(f"{where}: {problem}", hint=_ACCEPTED) from problem
