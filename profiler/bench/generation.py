"""Measure whole generation: unprofiled passes over the same prompts, their memory, loading and warm-up apart."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import to_builtins
from torch import Tensor

from molprof.common.errors import RunError, UnsupportedError, UsageError
from molprof.common.manifest import Machine
from molprof.common.memory import processors
from molprof.profiler.bench.cases import GenerateCase
from molprof.profiler.capture.account import sequence_runs
from molprof.profiler.constraints import processor_of
from molprof.profiler.engines import BatchPlan
from molprof.profiler.engines.backends import NO_KERNEL
from molprof.profiler.engines.generation import followed
from molprof.profiler.engines.runner import PassResult, Runner
from molprof.profiler.environment import environment, warned
from molprof.profiler.machine import Watch
from molprof.profiler.models.device import Peak, set_arithmetic
from molprof.profiler.models.load import load
from molprof.profiler.molecules.prompts import Prompt, read_inputs, with_chats
from molprof.profiler.recording.clock import Clock
from molprof.profiler.recording.marks import before_forward

_DIGEST_LETTERS = 12


def measure_generation(case: GenerateCase) -> dict[str, Any]:
    """Return the figures of one case, and its environment.

    UnsupportedError if the settings exclude each other, or the attention has no kernel here (torch's reason).
    """
    if case.threads is not None:
        torch.set_num_threads(case.threads)
    set_arithmetic(case)
    began = time.perf_counter_ns()
    loaded = load(case)
    load_ns = time.perf_counter_ns() - began
    try:
        case = followed(case, loaded.generation)
        runner = Runner(loaded, processor_of(case, loaded.target), case)
        plans = runner.plan(filled(with_chats(read_inputs(case).prompts, loaded.tokenizer), case.count))
    except UsageError as problem:
        raise UnsupportedError(str(problem), problem.hint) from problem
    watch = Watch(loaded.target.device)
    cache_bytes = [0]  # before each forward; the last one adds one more token to a cache that grows
    with before_forward(loaded.model, lambda inputs: cache_bytes.append(held_bytes(inputs.get("past_key_values")))):
        warm = [_warmed(runner, plans), *(runner.run(plans, Clock()) for _ in range(case.warmup - 1))]
    before, peak = watch.end(), Peak(loaded.target.device)
    results, phases, spans = [], [], []
    for _ in range(case.passes):
        marks = Clock()
        watch.begin()
        results.append(runner.run(plans, marks))
        spans.append(watch.end())
        phases.append(marks.phases_ns())
    figures = {
        "load_ns": load_ns,
        "warmup_ns": [result.wall_ns for result in warm],
        "warmup_compiles": [result.compiles for result in warm],
        "warmup_compile_ns": [result.compile_ns for result in warm],
        "wall_ns": [result.wall_ns for result in results],
        "compiles": [result.compiles for result in results],
        "compile_ns": [result.compile_ns for result in results],
        "phases_ns": phases,
        **peak.read(),
        "machine": to_builtins(Machine(processors(), before, spans)),
        "kv_cache_bytes": max(cache_bytes) or None,
        **_written(runner, plans, results[0]),
        "prompt_widths": [plan.prompt_width for plan in plans],
        "max_new_tokens": max(plan.max_new_tokens for plan in plans),
        "processor": None if runner.processor is None else runner.processor.name,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        **_compiler_counts(),
    }
    return {"figures": figures, "environment": to_builtins(environment(loaded.target.device))}


def filled(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Return `count` prompts, repeating them if there are fewer."""
    return [prompts[place % len(prompts)] for place in range(count)]


def _warmed(runner: Runner, plans: list[BatchPlan]) -> PassResult:
    """The first warm-up pass, which shows whether the attention has a kernel."""
    said: list[str] = []
    try:
        with warned() as said:
            return runner.run(plans, Clock())
    except RunError as problem:
        if not any(words in str(problem.__cause__) for words in NO_KERNEL):
            raise
        told = [text for text in dict.fromkeys(said) if "attention" in text.lower() or "kernel" in text.lower()]
        raise UnsupportedError(" ".join([*told, str(problem.__cause__)])) from problem


def _written(runner: Runner, plans: list[BatchPlan], result: PassResult) -> dict[str, Any]:
    """What a pass generated; `text_digest` is equal for equal tokens."""
    molecules, _ = sequence_runs(runner, plans, result)
    checked = [run.valid for run in molecules]
    digest = hashlib.sha256(repr([run.token_ids for run in molecules]).encode()).hexdigest()
    return {
        "tokens": sum(len(run.token_ids) for run in molecules),
        "steps": sum(batch.steps for batch in result.batches),
        "row_steps": sum(sum(batch.rows_per_step) for batch in result.batches),
        "molecules": len(molecules),
        "valid_molecules": None if None in checked else checked.count(True),
        "text_digest": digest[:_DIGEST_LETTERS],
    }


def _compiler_counts() -> dict[str, Any]:
    """Graph breaks, and graphs that inductor found in its cache on the disk or compiled; 0 without compiling."""
    utilities = sys.modules.get("torch._dynamo.utils")
    counters: Any = {} if utilities is None else utilities.counters
    inductor = counters.get("inductor", {})
    return {
        "graph_breaks": sum(counters.get("graph_break", {}).values()),
        "graph_cache_hits": inductor.get("fxgraph_cache_hit", 0),
        "graph_cache_misses": inductor.get("fxgraph_cache_miss", 0),
    }


def held_bytes(cache: Any) -> int:
    """Return the bytes of all tensors of a cache, each storage once; quantized tensors as stored."""
    storages: dict[int, int] = {}
    for layer in getattr(cache, "layers", None) or ():
        for value in vars(layer).values():
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor) and tensor.ndim > 1:
                    inner = tensor.untyped_storage()
                    storages[inner.data_ptr()] = inner.nbytes()
    return sum(storages.values())
