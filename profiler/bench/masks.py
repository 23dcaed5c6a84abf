"""Masks of an engine along the instances of JSON schemas, token by token, without a model."""

from __future__ import annotations

import gc
import itertools
import json
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from molprof.common.errors import MolprofError
from molprof.common.memory import default_threads
from molprof.common.process import OK, Ending
from molprof.common.process.guarded import Limits, call
from molprof.common.text import shortened
from molprof.profiler.bench.cases import MasksCase, from_json, to_json
from molprof.profiler.bench.mask_engine import REFUSED, CompiledConstraint, Judged, MaskEngine, judged
from molprof.profiler.bench.oracle import compared
from molprof.profiler.bench.samples import with_samples
from molprof.profiler.bench.schemas import SchemaFile, read_schemas
from molprof.profiler.bench.tools import changed, tool_sets
from molprof.profiler.molecules.prompts import Constraint

MEASURE = f"{__name__}:measure_masks"  # of a case, what is done of it, and the file to add to
_MOST_TEXT = 200
# Of more tokens no one asks whether all begin one text.
_MOST_BEGINNINGS = 64
_MOST_BEFORE = 24
# Of an instance, tokens over which the rows of a batch are spread, and the steps that they take.
_MOST_BATCHED, _BATCHED_STEPS = 256, 16
# Of fewer rows more steps: so many tokens in all.
_BATCHED_ROWS = 256
# Of a limit of time, the share for texts of one row; and the fewest steps of a batch, whatever they take.
_TEXTS_SHARE, _LEAST_STEPS = 0.4, 4


def measure_each(case: MasksCase, limits: Limits, measure: str = MEASURE) -> Ending:
    """Measure the schemas of a case one after the other in one process, within the limits of a process.

    A schema that ends it, after others, is the first of another process. If it ends that one too, it has this ending,
    and the schemas after it go on in a new process.
    """
    schemas: list[Any] = []
    head: dict[str, Any] = {}
    began = time.monotonic()
    names = [item.name for item in _items(case)]
    while len(schemas) < case.count:
        with TemporaryDirectory(prefix="molprof-") as folder:
            kept, before = Path(folder, "schemas.jsonl"), len(schemas)
            ending = call(measure, to_json(case), before, str(kept), limits=limits)
            # A process that was killed may leave a part of a line.
            *lines, _ = kept.read_bytes().split(b"\n") if kept.exists() else [b""]
        if not lines:  # it did not come to the schemas
            return ending
        head, *more = map(json.loads, lines)
        schemas += more
        if ending.state == OK:
            break
        if len(schemas) == before:
            schemas.append({"name": names[before], "status": ending.state, "message": ending.message, "instances": []})
    figures = {"schemas": schemas, "version": head["version"], "vocabulary_ns": head.get("vocabulary_ns")}
    value = {"figures": figures, "environment": head["environment"]}
    return Ending(OK, seconds=time.monotonic() - began, value=value)


def measure_masks(raw: dict[str, Any], done: int, kept: str) -> None:
    """Measure the schemas of a case except the first `done`; add each to the file `kept` as a JSON line."""
    import torch
    from msgspec import to_builtins

    from molprof.profiler.environment import environment
    from molprof.profiler.models.load import load_target

    case = from_json(raw)
    assert isinstance(case, MasksCase)
    torch.set_num_threads(default_threads(torch.get_num_threads()))  # as a capture does
    target = load_target(case.tokenizer)
    engines = [MaskEngine(name, target) for name in (case.engine, case.other) if name is not None]
    with Path(kept).open("a") as file:

        def keep(line: dict[str, Any]) -> None:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()

        versions = ", ".join(engine.version for engine in engines)
        head = {"version": versions, "environment": to_builtins(environment(target.device))}
        keep({**head, "vocabulary_ns": None if case.other is not None else engines[0].vocabulary_ns})
        measured: Any = partial(_measured, case) if case.other is None else compared
        for item in itertools.islice(_items(case), done, None):
            keep(measured(with_samples(item, target) if case.is_one else item, *engines))


def _items(case: MasksCase) -> Iterator[SchemaFile]:
    """Yield the constraints of a case."""
    if case.constraint is not None:
        kind, text = case.constraint
        yield SchemaFile(kind, None, (), Constraint(kind, text))  # type: ignore[arg-type]
        return
    if case.tools is not None:
        yield from tool_sets(case.tools)[case.first : case.first + case.count]
        return
    yield from read_schemas(None if case.folder is None else Path(case.folder), case.first, case.count)


def _measured(case: MasksCase, item: SchemaFile, engine: MaskEngine) -> dict[str, Any]:
    """Return the figures of one schema, as `MaskedSchema` reads them."""
    import torch

    from molprof.profiler.models.device import Peak

    figures: dict[str, Any] = {"name": item.name, "status": OK, "message": None, "instances": []}
    try:
        instances = [*judged(item, engine.target)]
    except Exception as problem:  # no schema, or one that the validator cannot follow
        return {**figures, "status": "not judged", "message": shortened(str(problem), _MOST_TEXT)}
    gc.collect()
    gc.disable()  # it would count for whatever token it comes with
    try:
        peak, before = Peak(torch.device("cpu")), psutil.Process().memory_info().rss
        began = time.perf_counter_ns()
        try:
            matchers = engine.compile(item.whole)
            compiled_ns = time.perf_counter_ns() - began
            matchers().fill()
        except MolprofError as problem:
            return {**figures, "status": REFUSED, "message": shortened(str(problem), _MOST_TEXT)}
        figures |= {"compile_ns": compiled_ns, "first_mask_ns": time.perf_counter_ns() - began}
        highest = peak.read()["peak_memory_bytes"]
        figures["memory_bytes"] = None if highest is None else max(0, highest - before)
        if item.tools:
            figures |= {"tools": len(item.tools), **_second(item, engine)}
        if case.seconds is not None:  # the batches are of the longest
            instances.sort(key=lambda one: -len(one.tokens))
        until = _deadline(case, _TEXTS_SHARE)
        for one in instances:
            if figures["instances"] and time.monotonic() > until:
                figures["left_out"] = len(instances) - len(figures["instances"])
                break
            figures["instances"].append(_followed(one, engine, matchers))
        whole = [one for one, seen in zip(instances, figures["instances"], strict=False) if seen["accepted"]]
        if whole:
            figures["batches"] = [*_batched(case, max(whole, key=lambda one: len(one.tokens)), engine, matchers)]
        return figures
    finally:
        gc.enable()


def _second(item: SchemaFile, engine: MaskEngine) -> dict[str, int]:
    """Return the times of a second set that shares all but one argument, to its first mask, ns.

    With what the package keeps of grammars: alone, after the first set, and once more. Empty where it keeps nothing.
    """
    keep, second = getattr(engine.processor, "keep_compiled", None), changed(item)
    if keep is None:
        return {}

    def compiled_ns(constraint: Constraint) -> int:
        began = time.perf_counter_ns()
        engine.compile(constraint)().fill()
        return time.perf_counter_ns() - began

    try:
        keep(True)
        times = {"second_alone_ns": compiled_ns(second)}
        keep(True)
        compiled_ns(item.whole)
        return {**times, "second_after_ns": compiled_ns(second), "again_ns": compiled_ns(second)}
    finally:
        keep(False)


def _batched(
    case: MasksCase, one: Judged, engine: MaskEngine, compiled_constraint: CompiledConstraint
) -> Iterator[dict[str, Any]]:
    """Yield steps of batches whose rows start at different tokens of an instance."""
    tokens, instance = one.tokens[:_MOST_BATCHED], one.instance.description
    threads = [None] if case.threads is None else [None, *sorted({1, case.threads})]
    kinds = [*itertools.product(_devices(case), threads, case.batches)]
    for device, count, rows in kinds:
        # Tables have no threads to use.
        if count is not None and not getattr(engine.processor, "use_threads", lambda count: False)(count):
            continue
        batch = compiled_constraint.batch(rows, device)
        positions = [len(tokens) * row // rows for row in range(rows)]
        for row, position in enumerate(positions):
            batch.batch.seek(row, tokens[:position])
        times: dict[str, list[int]] = {name: [] for name in ("accept_ns", "fill_ns", "apply_ns")}
        batch.fill()  # which allocates
        until = _deadline(case, (1 - _TEXTS_SHARE) / len(kinds))
        for number in range(max(_BATCHED_STEPS, min(_BATCHED_ROWS // rows, len(tokens)))):
            if number >= _LEAST_STEPS and time.monotonic() > until:
                break
            for row, position in enumerate(positions):
                if position == len(tokens):  # as the next request in its place
                    batch.batch.seek(row, ())
                    positions[row] = 0
            batch.accept(*(tokens[position] for position in positions))
            positions = [position + 1 for position in positions]
            for name, ns in batch.fill().items():
                if name != "read":
                    times[f"{name}_ns"].append(ns)
        yield {"rows": rows, "threads": count, "device": device.type, "instance": instance, **times}
        if count is not None:
            engine.processor.use_threads(None)


def _deadline(case: MasksCase, share: float) -> float:
    """Return the moment at which a share of a schema's time is over."""
    return math.inf if case.seconds is None else time.monotonic() + share * case.seconds


def _devices(case: MasksCase) -> list[Any]:
    """Return the devices for scores: the CPU, and the GPU if there is one."""
    import torch

    from molprof.profiler.models.device import on_gpu, resolve_device

    device = resolve_device(case.device)
    return [torch.device("cpu"), *([device] if on_gpu(device) else [])]


def _followed(one: Judged, engine: MaskEngine, compiled_constraint: CompiledConstraint) -> dict[str, Any]:
    """Run an instance through the engine: a mask before each token and before its end, until one forbids it."""
    target = engine.target
    mask_ns: list[int] = []
    accept_ns: list[int] = []
    apply_ns: list[int] = []
    forced = forced_text = 0
    row, error, accepted = compiled_constraint(), None, True
    for token in (*one.tokens, target.eos):
        try:
            times = row.fill()
            accept_ns += [times["accept"]] if mask_ns else []
            mask_ns.append(times["fill"])
            apply_ns.append(times["apply"])
            allowed = row.bits().nonzero()[0]
            forced += len(allowed) == 1
            forced_text += len(allowed) == 1 or _one_text(allowed[: _MOST_BEGINNINGS + 1].tolist(), target)
            accepted = row.allows(token)
            if not accepted or token == target.eos:
                break
            row.accept(token)
        except Exception as problem:  # of the package
            accepted, error = False, shortened(f"{type(problem).__name__}: {problem}", _MOST_TEXT)
            break
    seen = len(mask_ns)
    keywords = [[name, len(list(run))] for name, run in itertools.groupby(one.keywords[:seen])]
    texts = (target.table.join(part) for part in (one.tokens[: len(accept_ns)], one.tokens[len(accept_ns) :][:1]))
    at = None if accepted else "{}|{}".format(*(text[-_MOST_BEFORE:] for text in texts))
    return {
        "description": one.instance.description, "valid": one.valid, "declared": one.instance.declared,
        "tokens": len(one.tokens), "accepted": accepted, "stopped_at": at, "error": error,
        "mask_ns": mask_ns, "accept_ns": accept_ns, "apply_ns": apply_ns, "forced": forced, "forced_text": forced_text,
        "states": [[name, len(list(run))] for name, run in itertools.groupby(one.states[:seen])], "keywords": keywords,
    }  # fmt: skip


def _one_text(tokens: list[int], target: Any) -> bool:
    """Return True if all begin the same text, so that it must follow, in whatever tokens."""
    pieces = [target.table.of(token) for token in tokens]
    if not pieces or len(pieces) > _MOST_BEGINNINGS or b"" in pieces:
        return False
    longest = max(pieces, key=len)
    return all(map(longest.startswith, pieces))
