"""The records in a results file of a benchmark or sweep, and their reader. Format: docs/benchmarks.md."""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from molprof.common.errors import MolprofError, TraceError, UsageError
from molprof.common.manifest import KEY, Machine, Manifest, from_json
from molprof.common.process import OK
from molprof.common.settings import SETTINGS, CaptureSettings
from molprof.common.typed_json import read_typed

SCHEMA = 2
GENERATE, SDPA, MASKS = "generate", "sdpa", "masks"
# In the folder of a sweep: results, what cases print, and what an older molprof wrote in place of results.
RESULTS, LOGS, OLD_INDEX = "results.jsonl", "logs", "index.json"
WAITING = "waiting"
_DIGEST_LETTERS = 12
_ALWAYS = (
    "model", "tokenizer", "processor", "batch_size", "attention", "kv_cache", "compile", "tf32", "cudnn_benchmark",
    "padding_multiple", "count", "smiles", "prompts", "max_new_tokens", "dtype", "device", "warmup", "repeats",
    "threads", "trust_remote_code",
)  # fmt: skip
_ACCEPTED = "use a file that molprof bench -o wrote, or the folder of a sweep"
# Nanoseconds, bytes and counts.
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_T = TypeVar("_T")


@dataclass(frozen=True)
class GenerationFigures:
    """Figures of whole generation that one process measured; None: not recorded."""

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
    """Figures of the attention kernel from one process; None: not recorded."""

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
    """Masks of an engine along one instance: before each token and before the end, until one forbids the next token."""

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
    """Steps of rows at different positions of one instance: tokens accepted, masks filled and applied."""

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
        """The total time of each step."""
        parts = [part for part in (self.accept_ns, self.fill_ns, self.apply_ns) if part]
        return [sum(times) for times in zip(*parts, strict=True)]


@dataclass(frozen=True)
class TokenDifference:
    """A token that one of two engines allows after a prefix."""

    instance: str
    prefix: str  # its last characters
    token: str
    allowed_by: str
    verdict: str  # `right`, `wrong` or `not shown`
    why: str  # the text that shows it


@dataclass(frozen=True)
class MaskedSchema:
    """Figures of one schema from one process; None: not recorded."""

    name: str
    status: str  # `ok`, `refused` by the engine, `not judged`, or how it ended the process
    message: str | None = None
    compile_ns: Whole | None = None
    first_mask_ns: Whole | None = None  # from the schema on
    memory_bytes: Whole | None = None  # resident, most until the first mask
    tools: Whole | None = None  # of the set that it is made of
    # Of a set with one argument more, to its first mask, where the package keeps what it compiled: alone, after the
    # first set, and once more
    second_alone_ns: Whole | None = None
    second_after_ns: Whole | None = None
    again_ns: Whole | None = None
    instances: list[MaskedInstance] = field(default_factory=list)
    left_out: Whole = 0  # instances that were not followed for time
    batches: list[MaskedBatch] = field(default_factory=list)
    # Of two engines: prefixes of valid instances, those after which their masks differ, tokens that one alone allows
    prefixes: Whole | None = None
    differing: Whole | None = None
    only: dict[str, Whole] = field(default_factory=dict)
    differences: list[TokenDifference] = field(default_factory=list)
    # By engine: tokens of small masks, and those that the tokenizer would not write there
    looked: dict[str, Whole] = field(default_factory=dict)
    unusual: dict[str, Whole] = field(default_factory=dict)


@dataclass(frozen=True)
class MaskFigures:
    """Figures of an engine, or of a comparison of two (then without times), from one process."""

    schemas: list[MaskedSchema]
    version: str  # of the packages
    vocabulary_ns: Whole | None = None  # to make what is the same for every constraint; None: nothing, or not recorded


@dataclass(frozen=True)
class CaseResult:
    """One process of a case."""

    case: str
    label: str
    settings: dict[str, Any]  # of the case, `kind` first
    environment: str
    repeat: int
    # `ok`, `failed`, `timed out`, `out of memory`, `not measured` or `unsupported`; of a sweep also `waiting`,
    # `submitted`, and what else becomes of a task of a cluster
    status: str
    message: str | None = None
    stack: list[str] | None = None
    wall_s: float | None = None
    figures: dict[str, Any] | None = None  # None unless the status is ok
    largest_batch: int | None = None  # the largest that fits, if the case was out of memory
    fit_exact: bool | None = None  # no larger one fits
    # Of a case of a sweep, in the folder of the file: what it writes; the values that it takes from the grid; its
    # command line after `molprof`, without the output; the cluster's job that runs it, if one does
    output: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    job: str | None = None
    ended: str = ""  # when, in ISO format and UTC

    @property
    def problem(self) -> str:
        """The reason why it is not ok."""
        return f"{self.status}: {self.message}" if self.message else self.status

    @property
    def kind(self) -> str:
        """The kind of the case."""
        return str(self.settings.get("kind"))

    def read_figures(self, kind: type[_T]) -> _T:
        """Return the figures as `kind`: `GenerationFigures`, `SdpaFigures` or `MaskFigures`."""
        return read_typed(self.figures, kind, f"case {self.case}: figures", _ACCEPTED)


@dataclass(frozen=True)
class Results:
    """A file of results."""

    environments: dict[str, dict[str, Any]] = field(default_factory=dict)  # hardware and versions by id
    runs: tuple[dict[str, Any], ...] = ()  # the runs that added to the file: command, seed, repeats, limits
    results: tuple[CaseResult, ...] = ()
    notes: tuple[str, ...] = ()  # what the reader should know about the file


@dataclass(frozen=True)
class _Head:
    schema: int
    record: str


@dataclass(frozen=True)
class _BenchEnvironment:
    id: str
    environment: dict[str, Any]


def digest(content: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits, equal for equal JSON on any machine."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]


def settings_json(settings: CaptureSettings) -> dict[str, Any]:
    """Return the settings of a case of whole generation: some always, others where they are not the default."""
    values = vars(settings).items()
    kept = {name: value for name, value in values if name in _ALWAYS or value != SETTINGS[name].default}
    kept["passes"] = kept.pop("repeats")  # a result's `repeats` are its processes
    return kept


def read_results(path: Path, to_add: bool = False) -> Results:
    """Return all records of a file and its shares, without a last line that was cut off.

    Of a folder they are those of its sweep; of the file of a capture without a recorded pass, that capture.

    With `to_add`, results will be added to the file: it may be empty, and a wrong file is a wrong option (UsageError,
    else TraceError).
    """
    if path.is_dir() and not to_add:
        return read_sweep(path)
    if path.name.endswith((".json", ".json.gz")) and path.is_file() and not to_add:
        alone = CaseResult(path.name, path.name, {"kind": GENERATE}, "", 0, OK, output=path.name)
        return _of_manifests([alone], path.parent)
    parts = [] if to_add else [item for item in part_paths(path) if item != path]
    if parts and (path.is_file() or len(parts) > 1):
        return _joined([_read(item, to_add) for item in ([path] if path.is_file() else []) + parts])
    return _read(parts[0] if parts else path, to_add)


def part_path(path: Path, share: tuple[int, int]) -> Path:
    """Return the file of one share of the cases, next to the results file.

    Not all nodes can append to one.
    """
    return path.with_name(f"{path.stem}.{share[0]}-of-{share[1]}{path.suffix}")


def part_paths(path: Path) -> list[Path]:
    """Return the files of shares next to a results file."""
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}.*-of-*{path.suffix}"))


def _joined(files: Sequence[Results]) -> Results:
    """Return the results of all files, in the order in which they ended."""
    return Results(
        {name: item for file in files for name, item in file.environments.items()},
        tuple(run for file in files for run in file.runs),
        tuple(sorted((item for file in files for item in file.results), key=lambda item: item.ended)),
        tuple(note for file in files for note in file.notes),
    )


def _read(path: Path, to_add: bool) -> Results:
    error: type[MolprofError] = UsageError if to_add else TraceError
    hint = f"{_ACCEPTED}, or a new one" if to_add else _ACCEPTED
    try:
        *lines, cut = path.read_bytes().split(b"\n")
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}", hint) from problem
    if cut and not lines:
        raise error(f"{path} is not a file of benchmark results", hint)
    environments: dict[str, dict[str, Any]] = {}
    runs, results = [], []
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
            described = read_typed(raw, _BenchEnvironment, where, hint, error)
            environments[described.id] = described.environment
        elif head.record == "run":
            runs.append(raw)
        elif head.record == "result":
            results.append(read_typed(raw, CaseResult, where, hint, error))
    if not (to_add or results or environments):
        raise error(f"{path} holds no benchmark results", hint)
    notes = (f"{path} ends inside line {len(lines) + 1}, which is left out",) if cut else ()
    return Results(environments, tuple(runs), tuple(results), notes)


def is_sweep(folder: Path) -> bool:
    """Return True if a sweep wrote to the folder. Raises TraceError if that was one of an older molprof."""
    if (folder / RESULTS).is_file() or part_paths(folder / RESULTS):
        return True
    with contextlib.suppress(OSError, ValueError):
        if json.loads((folder / OLD_INDEX).read_text(encoding="utf-8")).get("kind") == "molprof sweep":
            raise TraceError(
                f"{folder} is a sweep of an older molprof", f"molprof compare {folder}/*.json.gz, or sweep again"
            )
    return False


def read_sweep(folder: Path) -> Results:
    """Return the last result of each process of each case of a sweep, in order of their begin."""
    if not is_sweep(folder):
        raise TraceError(f"{folder} holds no results of a sweep", "molprof sweep GRID makes such a folder")
    whole = read_results(folder / RESULTS)
    last: dict[tuple[str, int], CaseResult] = {}
    for result in whole.results:
        if result.output is None or Path(result.output).name != result.output:
            raise TraceError(f"{folder} has a result outside of it: {result.output!r}")
        last[result.case, result.repeat] = result
    completed = _of_manifests(tuple(last.values()), folder, whole.environments)
    return replace(completed, runs=whole.runs, notes=whole.notes)


def _of_manifests(
    results: Sequence[CaseResult],
    folder: Path,
    environments: Mapping[str, dict[str, Any]] = {},
) -> Results:
    """Return the results with the content of the manifests of captures without a recorded pass."""
    all_environments, completed = dict(environments), list[CaseResult]()
    for result in results:
        if result.kind == GENERATE and result.status == OK and result.output is not None:
            path = folder / result.output
            if not path.is_file():
                completed.append(replace(result, status="lost", message=f"{path} is gone"))
                continue
            manifest = _manifest(path)
            environment = msgspec.to_builtins(manifest.environment)
            all_environments[digest(environment)] = environment
            # A capture by itself has no case, whose settings are as they were asked for.
            settings = {"kind": GENERATE, **settings_json(manifest.settings), **result.settings}
            kept = settings if not result.arguments else result.settings
            result = replace(result, figures=_figures(manifest), environment=digest(environment), settings=kept)
        completed.append(result)
    return Results(all_environments, (), tuple(completed))


def _manifest(path: Path) -> Manifest:
    try:
        content = path.read_bytes()
        raw = msgspec.json.decode(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as problem:
        raise TraceError(f"{path} is no result of a sweep: {problem}", _ACCEPTED) from problem
    manifest = from_json(raw.get(KEY) if isinstance(raw, dict) else None)
    if not manifest.settings.timed_only:
        raise TraceError(f"{path} is a trace", f"molprof report {path}")
    return manifest


def _figures(manifest: Manifest) -> dict[str, Any]:
    """Return the `GenerationFigures` of a capture, as JSON."""
    timings, molecules = manifest.timings, manifest.molecules
    names = ("load_ns", "warmup_ns", "graph_breaks", "peak_memory_bytes", "peak_memory_of", "kv_cache_bytes")
    checked = [run.valid for run in molecules]
    return {
        **{name: getattr(timings, name) for name in names},
        **{name: [getattr(repeat, name) for repeat in timings.repeats]
           for name in ("wall_ns", "phases_ns", "compiles", "compile_ns")},
        "warmup_compiles": timings.warmup_compiles or [],
        "warmup_compile_ns": timings.warmup_compile_ns or [],
        "tokens": sum(len(run.token_ids) for run in molecules),
        "steps": sum(manifest.steps_per_batch),
        "row_steps": None if manifest.rows_per_step is None else sum(map(sum, manifest.rows_per_step)),
        "molecules": len(molecules),
        "valid_molecules": None if None in checked else checked.count(True),
        "text_digest": digest({"tokens": [run.token_ids for run in molecules]}),
        "machine": msgspec.to_builtins(manifest.machine),
    }  # fmt: skip
