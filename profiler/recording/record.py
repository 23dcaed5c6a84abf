"""`record()`: a trace of any code, with the steps and tokens of whatever calls transformers' `generate` in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from molprof.common.errors import RunError, UsageError
from molprof.common.files import scratch_file
from molprof.common.manifest import KEY, SCHEMA, Manifest, Resolved, SequenceRun, Timings, Window
from molprof.common.settings import AUTO, SETTINGS, CaptureSettings
from molprof.common.values import now
from molprof.profiler.environment import check_versions, environment
from molprof.profiler.models.device import resolve_device
from molprof.profiler.models.load import sizes
from molprof.profiler.models.target import TokenBytes, token_bytes
from molprof.profiler.recording.marks import Call, mark_cost_ns, marked
from molprof.profiler.recording.tracefile import Exported, OutputFile, read_exported, token_events, write_trace
from molprof.profiler.recording.window import Steps, recording


@contextmanager
def record(
    path: str | Path,
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    window: tuple[int, int, int] | None = None,
    stacks: bool = False,
    shapes: bool = False,
    force: bool = False,
) -> Iterator[None]:
    """Records what this thread does in the block, and writes the trace where it ends well.

    Each call of `generate` is a batch of the trace. Models, logits processors, stopping criteria and generation configs
    stay as they are. Nothing is timed without the profiler, so that the trace has no times of the unprofiled program.

    Args:
        tokenizer: for the texts of prompts and tokens.
        window: call of `generate`, first and last step to record, from 0; the rest runs without the profiler.
        stacks: record modules and Python functions too.
        shapes: record the sizes of operators' inputs.
        force: replace a file that exists.

    Raises:
        UsageError: the file cannot be written, before the block runs.
        RunError: the block ended before the window, torch could not export its trace, or the disk is full.
    """
    check_versions()
    output = OutputFile(Path(path), force, tuple(sys.argv))
    output.check()
    calls: list[Call] = []
    steps = None if window is None else Steps(*window)
    with scratch_file(output.path) as part:
        raw = output.raw(part)
        with (
            recording(raw, resolve_device(AUTO), steps, stacks=stacks, shapes=shapes) as marks,
            marked(marks, heard=calls.append),
        ):
            yield
        if marks.profiler is None:
            raise RunError(f"the program ended before its window {tuple(steps or ())}: call, first and last step")
        exported = read_exported(raw, output)
        calls = [call for call in calls if call.columns]
        if not calls:
            write_trace(exported, output, (), {})
            return
        found = _generated(calls, tokenizer)
        manifest = _manifest(calls, found, exported, output, stacks, steps)
        events = token_events(found.sequences, found.texts, exported.steps)
        write_trace(exported, output, events, {KEY: manifest.to_json()})


@dataclass(frozen=True)
class Step:
    """One step: the tokens that sequences got in it, by the number of the sequence."""

    tokens: Mapping[int, Sequence[int]]
    rows: int  # that it computed
    batch: int | None = None  # the sequences that it belongs to ran together, from their first step to their last


@dataclass
class _Sequence:
    batch: int
    row: int
    tokens: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # by step of its batch, until its last token


@dataclass(frozen=True)
class Generated:
    """The sequences of steps, as a manifest holds them."""

    sequences: list[SequenceRun]
    texts: list[list[str]]  # of each token
    rows_per_step: list[list[int]]  # by batch


def generated(
    steps: Iterable[Step], prompts: Mapping[int, Sequence[int]], table: TokenBytes | None, ends: frozenset[int]
) -> Generated:
    """The sequences of steps in their order; steps without a batch are one batch, which sequences join and leave.

    Args:
        prompts: tokens by sequence.
        table: the vocabulary; without it a token's text is its id, and an answer has none.
        ends: ids that end a sequence.
    """
    found: dict[int, _Sequence] = {}
    rows: list[list[int]] = []
    for step in steps:
        batch = step.batch or 0
        rows += [[] for _ in range(batch + 1 - len(rows))]
        for number, tokens in step.tokens.items():
            if number not in found:
                found[number] = _Sequence(batch, sum(other.batch == batch for other in found.values()))
            sequence = found[number]
            sequence.counts += [0] * (len(rows[batch]) - len(sequence.counts)) + [len(tokens)]
            sequence.tokens += tokens
        rows[batch].append(step.rows)
    known = table or TokenBytes((), frozenset(), 0)
    runs = []
    for number, sequence in sorted(found.items()):
        prompt = prompts.get(number, ())
        place: dict[str, Any] = {"sequence": number, "batch": sequence.batch, "row": sequence.row}
        counts = None if set(sequence.counts) <= {1} else sequence.counts
        runs.append(sequence_run(known.join(prompt), len(prompt), sequence.tokens, known, ends, counts, **place))
    texts = [[table.join([token]) if table else str(token) for token in run.token_ids] for run in runs]
    return Generated(runs, texts, rows)


def sequence_run(
    prompt: str,
    prompt_tokens: int,
    tokens: Sequence[int],
    table: TokenBytes,
    ends: frozenset[int],
    step_tokens: Sequence[int] | None,
    **place: Any,
) -> SequenceRun:
    """A sequence of any program: all tokens but the end token are free. `place`: its number, batch and row."""
    ended = bool(tokens) and tokens[-1] in ends
    return SequenceRun(
        **place,
        smiles=None,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        token_ids=list(tokens),
        kinds="f" * (len(tokens) - ended) + "e" * ended,
        blocks=[-1] * len(tokens),
        text=table.join(tokens[: len(tokens) - ended]),
        cut_blocks=0,
        needed_per_block=[],
        step_tokens=None if step_tokens is None else list(step_tokens),
    )


def _steps(call: Call, batch: int, first: int, ends: frozenset[int]) -> list[Step]:
    """The steps of a call of `generate`, whose rows are the sequences from number `first` on."""
    assert call.sequences is not None
    width = call.width or 0
    sequences, last = call.sequences.cpu(), call.last
    columns = sequences.shape[1]
    # A beam search reorders its rows, and a step that was made too early is taken back.
    kept = last is not None and len(last) == len(sequences) and torch.equal(last[:, :columns].cpu(), sequences)
    done = torch.stack(call.done).cpu().T.tolist() if kept else []
    stops = []
    for row, tokens in enumerate(sequences.tolist()):
        if kept:
            ended = (count for count, over in zip(call.columns, done[row], strict=True) if over)
        else:
            ended = (place + 1 for place in range(width, columns) if tokens[place] in ends)
        stops.append(min(next(ended, columns), columns))
    steps, begin = [], width
    for count, over in zip(call.columns, call.done, strict=True):
        parts = {first + row: tokens[begin : min(count, stops[row])] for row, tokens in enumerate(sequences.tolist())}
        steps.append(Step({number: part for number, part in parts.items() if part}, len(over), batch))
        begin = count
    return steps


def _generated(calls: Iterable[Call], tokenizer: PreTrainedTokenizerFast | None) -> Generated:
    steps: list[Step] = []
    prompts: dict[int, list[int]] = {}
    ends = frozenset[int]()
    for number, call in enumerate(calls):
        ends |= _ends(call)
        first = len(prompts)
        steps += _steps(call, number, first, _ends(call))
        prompts |= dict(enumerate(_prompts(call), first))
    return generated(steps, prompts, None if tokenizer is None else token_bytes(tokenizer), ends)


def _config(call: Call, name: str) -> Any:
    """A generation setting of a call: its own, else that of its generation config, else of the model's."""
    for source in (call.given, call.given.get("generation_config"), call.model.generation_config):
        value = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
        if value is not None:
            return value
    return None


def _ends(call: Call) -> frozenset[int]:
    ends = _config(call, "eos_token_id")
    return frozenset(() if ends is None else torch.as_tensor(ends).flatten().tolist())


def _prompts(call: Call) -> list[list[int]]:
    """The prompt of each sequence, without padding."""
    assert call.sequences is not None
    rows = len(call.sequences)
    given = next((item for name in ("inputs", "input_ids") if (item := call.given.get(name)) is not None), None)
    if given is None:  # embeddings
        return [[] for _ in range(rows)]
    mask = call.given.get("attention_mask")
    mask = torch.ones_like(given) if mask is None else mask
    found = [ids[seen.bool()].tolist() for ids, seen in zip(given, mask, strict=True)]
    return [found[row * len(found) // rows] for row in range(rows)]  # several answers to a prompt stand together


def _manifest(
    calls: list[Call], found: Generated, recorded: Exported, output: OutputFile, stacks: bool, window: Steps | None
) -> Manifest:
    """What is known of a program that molprof did not make."""
    model, first = calls[0].model, calls[0]
    sampled = bool(_config(first, "do_sample"))
    names = ("temperature", "top_k", "top_p", "min_p") if sampled else ()
    known: dict[str, Any] = {
        "model": model.name_or_path or type(model).__name__,
        "batch_size": max(max(rows) for rows in found.rows_per_step),
        "sampling": "sample" if sampled else "greedy",
        "attention": model.config._attn_implementation,
        "kv_cache": _config(first, "cache_implementation") or "dynamic",
        "stacks": stacks,
        "full": window is None,
        **{name: value for name in names if (value := _config(first, name))},
    }
    for name in list(known):
        try:
            SETTINGS[name].check_value(known[name])
        except UsageError:  # what molprof's own runs do not have
            del known[name]
    processors = ", ".join(type(item).__name__ for item in first.given.get("logits_processor") or ())
    spans = recorded.steps.values()
    return Manifest(
        schema=SCHEMA,
        created=now(),
        command=list(output.command),
        environment=environment(model.device),
        settings=CaptureSettings(**known),
        resolved=Resolved(
            **sizes(model),
            vocabulary=model.config.get_text_config(decoder=True).vocab_size,
            max_new_tokens=max(call.columns[-1] - (call.width or 0) for call in calls),
            processor=processors or None,
            processor_parameters={},
            placeholder=None,
            not_recorded=[name for name in SETTINGS if name not in known],
        ),
        timings=Timings(
            warmup_ns=[],
            repeats=[],
            mark_ns=mark_cost_ns(),
            unmarked_wall_ns=None,
            profiled_steps_ns=sum(span.duration_ns for span in spans),
            unprofiled_steps_ns=0,
        ),
        window=Window(False, *window) if window else Window(True, 0, 0, len(found.rows_per_step[0]) - 1),
        steps_per_batch=list(map(len, found.rows_per_step)),
        molecules=found.sequences,
        skipped=[],
        rows_per_step=found.rows_per_step,
    )
