"""Writing the trace file: the events that torch exported, the token tracks, and the manifest."""

from __future__ import annotations

import gzip
import itertools
import json
import mmap
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from molprof.common.errors import RunError, TakenError, UsageError
from molprof.common.files import check_output, replacing_packed, scratch_file
from molprof.common.manifest import CHOICE_LETTERS, INCOMPLETE_KEY, KIND_LETTERS, SequenceRun
from molprof.common.text import whole_json
from molprof.common.text_format import DEFAULT, TextFormat

# Neither a process (Linux: at most 2^22) nor a GPU has this number, and it fits into 32 bits.
TOKENS_PID = 1 << 30
ENDINGS = (".json", ".json.gz")
_CHUNK_BYTES = 1 << 22
_STEP = re.compile(rb'"molprof\.step batch=(\d+) step=(\d+)"')
_MODULE = b'"nn.Module: '
# Between events, as torch writes them.
_BETWEEN = b",\n  "
_EVENTS = "traceEvents"
# Of a file that is looked at from its end.
_TAIL_BYTES = 1 << 16
# Events that are written at once.
_MANY = 4096
# More than torch writes at once, so that there is no room for it where there was none for torch.
_PROBE_BYTES = 1 << 22
_INCOMPLETE = re.compile(rb',\n"%s": \{.*\}\n\}\n\Z' % INCOMPLETE_KEY.encode())
_ENDING = re.compile(r"\.json(\.gz)?\Z", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")
_KIND_NAMES = {letter: name for name, letter in KIND_LETTERS.items()}
_CHOICES = {letter: name for name, letter in CHOICE_LETTERS.items()}


@dataclass(frozen=True)
class OutputFile:
    """The output path of a capture's trace."""

    path: Path
    force: bool = False  # replace a file that exists
    command: tuple[str, ...] = ()  # the command line, for the manifest
    chosen: bool = False  # molprof chose the name, so that another one will do

    def check(self, inputs: Iterable[Path] = ()) -> None:
        """Raise UsageError if no trace can be written there, or it is one of the inputs."""
        if not _ENDING.search(self.path.name):
            raise UsageError(f"{self.path} ends in none of {', '.join(ENDINGS)}", hint="e.g. -o trace.json.gz")
        check_output(self.path, self.force, inputs)

    @contextmanager
    def raw(self) -> Iterator[Path]:
        """Yield torch's export path: a new name next to the output, since torch replaces the file."""
        with scratch_file(self.path) as part:
            yield Path(f"{part}.json")


@dataclass(frozen=True)
class StepSpan:
    """Span of a recorded step, in ns of the file's own clock (`ts` and `dur` times 1000)."""

    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """The end of the step, ns."""
        return self.start_ns + self.duration_ns


StepSpans = Mapping[tuple[int, int], StepSpan]


class _ExportedEvent(Struct):
    """The fields read of an event; times as they are written, because a float would lose ns."""

    cat: str = ""
    name: Raw = Raw(b'""')
    ts: Raw = Raw(b"0")
    dur: Raw = Raw(b"0")


@dataclass(frozen=True)
class ExportedFile:
    """A trace that torch.profiler exported."""

    keys: dict[str, Raw]  # top-level keys in their order; the place of `events` is among them
    events: list[Raw]
    steps: StepSpans  # the `molprof.step` annotations by (batch, step)


NO_EVENTS = ExportedFile({}, [], {})  # of a run without a recorded pass


def read_exported(raw: Path, output: OutputFile, functions: bool = True) -> ExportedFile:
    """Return the trace that torch exported to `raw`, which is next to the output.

    Args:
        functions: keep Python functions that are no calls of modules.

    Raises:
        RunError: `raw` is not whole: the disk was full while torch wrote it; or a step is there twice.
    """
    try:
        _make_utf8(raw)
        with raw.open("rb") as file:
            # `Raw` refers to the pages of the file, which need no memory of their own.
            keys = msgspec.json.decode(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), type=dict[str, Raw])
        events = msgspec.json.decode(keys[_EVENTS], type=list[Raw])
    except (msgspec.DecodeError, KeyError, OSError, ValueError) as problem:  # an empty file cannot be mapped
        size = raw.stat().st_size if raw.exists() else 0
        # torch does not say why. Where the disk is full, this fails too.
        try:
            raw.write_bytes(bytes(_PROBE_BYTES))
        except OSError as error:
            hint = f"df {output.path.absolute().parent} shows what is free; -o OUT names a file elsewhere"
            raise RunError(f"cannot write {output.path}: {error.strerror}", hint) from problem
        hint = "is the disk full, or the size of files limited?"
        raise RunError(f"the trace that torch exported is not whole ({size} bytes)", hint) from problem
    read = msgspec.json.Decoder(_ExportedEvent).decode
    kept: list[Raw] = []
    steps: dict[tuple[int, int], StepSpan] = {}
    for event in events:
        exported = read(event)
        name = memoryview(exported.name)
        if exported.cat == "python_function" and not (functions or name[: len(_MODULE)] == _MODULE):
            continue
        kept.append(event)
        if exported.cat == "user_annotation" and (match := _STEP.fullmatch(name)):
            batch, step = map(int, match.groups())
            if (batch, step) in steps:
                raise RunError(f"the recording has step {step} of batch {batch} twice")
            steps[batch, step] = StepSpan(_ns(exported.ts), _ns(exported.dur))
    return ExportedFile(keys, kept, steps)


def read_trace(path: Path) -> ExportedFile:
    """Return a trace of `write_trace`, to be written with other keys; its steps are not searched.

    Raises RunError where it cannot be read.
    """
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
            keys = msgspec.json.decode(file.read(), type=dict[str, Raw])
        return ExportedFile(keys, msgspec.json.decode(keys[_EVENTS], type=list[Raw]), {})
    except (msgspec.DecodeError, KeyError, OSError, EOFError, zlib.error) as problem:
        raise RunError(f"cannot read {path}: {problem}") from problem


def _make_utf8(raw: Path) -> None:
    """Replace bytes that are not UTF-8: Linux cuts names of threads to 15 bytes, also within a character."""
    with raw.open(encoding="utf-8", newline="") as text:
        try:
            while text.read(_CHUNK_BYTES):
                pass
            return
        except UnicodeDecodeError:
            pass
    whole = Path(f"{raw}.utf8")
    with raw.open(encoding="utf-8", errors="replace", newline="") as text, whole.open("w", encoding="utf-8") as out:
        shutil.copyfileobj(text, out, _CHUNK_BYTES)
    whole.replace(raw)


def write_trace(recorded: ExportedFile, output: OutputFile, events: Iterable[str], added: Mapping[str, Any]) -> Path:
    """Write torch.profiler's events, with more events and top-level keys, whole or not at all.

    Returns the trace's path.

    Raises:
        RunError: the output cannot be written.
        TakenError: another process wrote a file of this name meanwhile, and the name was not molprof's choice.
    """
    keys = {**recorded.keys, "traceName": _json(output.path.name).encode()}
    keys |= {name: _json(value).encode() for name, value in added.items()}
    all_events = itertools.chain(recorded.events, (event.encode() for event in events))
    try:
        with replacing_packed(output.path, output.force) as out:
            for index, (name, value) in enumerate(keys.items()):
                out.write(b"%s\n%s: " % (b"," if index else b"{", _json(name).encode()))
                if name != _EVENTS:
                    out.write(value)
                    continue
                before = b"[\n  "
                while some := list(itertools.islice(all_events, _MANY)):
                    out.write(before + _BETWEEN.join(some))
                    before = _BETWEEN
                out.write(b"\n]")
            out.write(b"\n}\n")
    except OSError as problem:
        raise RunError(f"cannot write {output.path}: {problem.strerror or problem}") from problem
    except TakenError as taken:
        if not output.chosen:
            raise
        return taken.kept
    return output.path


def default_name(model: str, processor: str | None) -> str:
    """Return the default name of a trace, by what is run: `qwen.json.gz`, `qwen-generic.json.gz`."""
    parts = [Path(model).expanduser().resolve().name, *([processor] if processor else [])]
    return "-".join(_UNSAFE.sub("-", part).strip("-.") or "run" for part in parts) + ".json.gz"


def trace_stem(name: str) -> str:
    """Return the name of a trace's file without its ending."""
    return _ENDING.sub("", name)


def beside(output: Path, what: str) -> Path:
    """Return the file of another trace of a capture to `output`: `x.json.gz` gives `x.graphs.json.gz`."""
    stem = trace_stem(output.name)
    return output.with_name(f"{stem}.{what}{output.name[len(stem) :]}")


def incomplete_path(output: Path) -> Path:
    """Return the path of the events before a failed capture to `output`."""
    return beside(output, "incomplete")


def is_incomplete(path: Path) -> bool:
    """Return True if a failed capture left this file, by its last lines."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            last = b""
            while chunk := file.read(_CHUNK_BYTES):
                last = (last + chunk)[-_TAIL_BYTES:]
    except (OSError, EOFError, zlib.error):
        return False
    return _INCOMPLETE.search(last) is not None


def token_events(
    molecules: Sequence[SequenceRun], texts: Sequence[Sequence[str]], steps: StepSpans, form: TextFormat = DEFAULT
) -> Iterator[str]:
    """Yield the token tracks as JSON events.

    A thread per sequence, with a slice of all of it and one per recorded token.
    """
    around = {} if form.answer == DEFAULT.answer else {"block_open": form.block_open, "block_close": form.block_close}
    origin = min(span.start_ns for span in steps.values())
    yield _label("process_name", 0, origin, {"name": "molprof tokens"})
    yield _label("process_sort_index", 0, origin, {"sort_index": -1})
    for run, words in zip(molecules, texts, strict=True):
        track, name = run.sequence + 1, f"sequence {run.sequence}: {run.smiles or run.prompt}"
        yield _label("thread_name", track, origin, {"name": name})
        yield _label("thread_sort_index", track, origin, {"sort_index": run.sequence})
        spans = {step: span for (batch, step), span in sorted(steps.items()) if batch == run.batch}
        start = min((span.start_ns for span in spans.values()), default=origin)
        end = max((span.end_ns for span in spans.values()), default=start)
        kinds = [_KIND_NAMES[letter] for letter in run.kinds]
        begins = list(range(len(words) + 1))  # by step, the first position that it made
        arrays: dict[str, Any] = {"token_id": run.token_ids, "text": words, "kind": kinds, "block": run.blocks}
        arrays |= _optional(run)
        if run.step_tokens is not None:
            begins = [0, *itertools.accumulate(run.step_tokens)]
            arrays["step"] = [step for step, count in enumerate(run.step_tokens) for _ in range(count)]
        whole = {"batch": run.batch, "row": run.row, "smiles": run.smiles, "tokens": len(words), **around, **arrays}
        yield _slice("molprof.sequence", name, track, StepSpan(start, end - start), {"sequence": run.sequence, **whole})
        for step, span in spans.items():
            positions = range(*begins[step : step + 2]) if step + 1 < len(begins) else range(0)
            for position, part in zip(positions, _shares(span, len(positions)), strict=True):
                ids = {"sequence": run.sequence, "batch": run.batch, "step": step, "position": position}
                token = {"token_id": run.token_ids[position], "kind": kinds[position], "block": run.blocks[position]}
                yield _slice("molprof.token", words[position], track, part, {**ids, **token})


def _shares(span: StepSpan, count: int) -> list[StepSpan]:
    """Return the time of a step in equal parts, one for each token that it made."""
    edges = [span.start_ns + span.duration_ns * index // count for index in range(count + 1)] if count else []
    return [StepSpan(start, end - start) for start, end in itertools.pairwise(edges)]


def _optional(run: SequenceRun) -> dict[str, list[Any]]:
    """Return arrays that only some runs have: by block, with -1 for unknown, and by token."""
    arrays: dict[str, list[Any]] = {}
    if run.template is not None:
        arrays["block_free"] = run.template.free_per_block
    if run.needed_per_block is not None:
        arrays["block_needed"] = [-1 if needed is None else needed for needed in run.needed_per_block]
    if run.disagreement is not None:
        arrays["probability"] = run.disagreement.probabilities
        arrays["rank"] = run.disagreement.ranks
        arrays["choice"] = [_CHOICES[letter] for letter in run.disagreement.choices]
        arrays["forbidden"] = [int(flag) for flag in run.disagreement.forbidden]
        if run.disagreement.removed is not None:
            arrays["removed"] = run.disagreement.removed
        if run.disagreement.unlike is not None:
            arrays["unlike"] = [int(flag) for flag in run.disagreement.unlike]
    return arrays


def _slice(category: str, name: str, track: int, span: StepSpan, arguments: dict[str, Any]) -> str:
    return (
        f'{{"ph":"X","cat":"{category}","name":{_json(name)},"pid":{TOKENS_PID},"tid":{track},'
        f'"ts":{_us(span.start_ns)},"dur":{_us(span.duration_ns)},"args":{_json(arguments)}}}'
    )


def _label(kind: str, track: int, origin: int, arguments: dict[str, Any]) -> str:
    where = f'"pid":{TOKENS_PID},"tid":{track},"ts":{_us(origin)}'
    return f'{{"ph":"M","name":"{kind}",{where},"args":{_json(arguments)}}}'


def _json(value: Any) -> str:
    return whole_json(json.dumps(value, separators=(",", ":")))


def _us(ns: int) -> str:
    """Return ns as µs with three decimals. A float would lose ns: timestamps are too large."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _ns(us: Raw) -> int:
    return int(Decimal(bytes(us).decode()) * 1000)
