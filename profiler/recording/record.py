"""`record()`: a trace of any code, with the steps and tokens of whatever calls transformers' `generate` in it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from molprof.common.errors import UsageError
from molprof.common.files import scratch_file
from molprof.common.manifest import KEY, SCHEMA, Manifest, Resolved, Timings, Window
from molprof.common.settings import AUTO, SETTINGS, CaptureSettings
from molprof.common.values import now
from molprof.profiler.environment import check_versions, environment
from molprof.profiler.models.device import resolve_device, synchronize
from molprof.profiler.models.load import sizes
from molprof.profiler.models.target import token_bytes
from molprof.profiler.recording.generate import Call, marked
from molprof.profiler.recording.marks import mark_cost_ns
from molprof.profiler.recording.steps import Generated, Step, generated, steps_of
from molprof.profiler.recording.tracefile import Exported, OutputFile, read_exported, token_events, write_trace
from molprof.profiler.recording.window import ProfilerMarks, exported, profiler_of, set_up


@contextmanager
def record(
    path: str | Path,
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    stacks: bool = False,
    shapes: bool = False,
    force: bool = False,
) -> Iterator[None]:
    """Records what this thread does in the block, and writes the trace where it ends well.

    Each call of `generate` is a batch of the trace. Models, logits processors, stopping criteria and generation configs
    stay as they are. Nothing is timed without the profiler, so that the trace has no times of the unprofiled program.

    Args:
        tokenizer: for the texts of prompts and tokens.
        stacks: record modules and Python functions too.
        shapes: record the sizes of operators' inputs.
        force: replace a file that exists.

    Raises:
        UsageError: the file cannot be written, before the block runs.
        RunError: torch could not export its trace, or the disk is full.
    """
    check_versions()
    output = OutputFile(Path(path), force, tuple(sys.argv))
    output.check()
    device = resolve_device(AUTO)
    set_up(device)
    calls: list[Call] = []
    profile = functools.partial(profiler_of, device, stacks, shapes)
    with scratch_file(output.path) as part:
        raw = output.raw(part)
        marks = ProfilerMarks(profile, None, functools.partial(synchronize, device))
        with exported(marks, raw), marked(marks, heard=calls.append):
            yield
        recorded = read_exported(raw, output)
        calls = [call for call in calls if call.columns]
        if not calls:
            write_trace(recorded, output, (), {})
            return
        found = _generated(calls, tokenizer)
        manifest = _manifest(calls, found, recorded, output, stacks)
        events = token_events(found.sequences, found.texts, recorded.steps)
        write_trace(recorded, output, events, {KEY: manifest.to_json()})


def _generated(calls: Iterable[Call], tokenizer: PreTrainedTokenizerFast | None) -> Generated:
    steps: list[Step] = []
    prompts: dict[int, list[int]] = {}
    ends = frozenset[int]()
    for number, call in enumerate(calls):
        ends |= _ends(call)
        first = len(prompts)
        steps += steps_of(call, number, first, _ends(call))
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


def _manifest(calls: list[Call], found: Generated, recorded: Exported, output: OutputFile, stacks: bool) -> Manifest:
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
        "full": True,
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
        window=Window(True, 0, 0, len(found.rows_per_step[0]) - 1),
        steps_per_batch=list(map(len, found.rows_per_step)),
        molecules=found.sequences,
        skipped=[],
        rows_per_step=found.rows_per_step,
    )
