"""A trace in, a smaller one out, in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import to_builtins

from molprof.analysis.figures.recorded_steps import RecordedStep, read_recorded_steps
from molprof.analysis.reader.events import STACK_CATEGORY
from molprof.analysis.reader.load import MANIFEST_HINT
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.analysis.trim.plan import Filter, Plan, Stretch, Wish, make_plan
from molprof.analysis.trim.scan import Scan, pass_over
from molprof.common.errors import TraceError, UsageError
from molprof.common.files import replacing_packed
from molprof.common.manifest import KEY, TRIMMED_KEY, Trimmed, from_json, trimmed_from_json


@dataclass(frozen=True)
class Outcome:
    before: int  # complete events
    after: int
    unplaced: int  # events with a separate begin and end, all of which were kept
    trimmed: Trimmed


def trim(path: Path, output: Path, wish: Wish, force: bool = True) -> Outcome:
    """Writes what `wish` keeps of the trace at `path`, whole or not at all; gzip if `output` ends in `.gz`.

    Without `force`, a file that appears at `output` meanwhile is kept: see `replacing`.
    Reads the trace twice. Needs about 100 bytes of memory per call, piece of GPU work, flow and annotation.
    Raises TraceError, or UsageError where the steps or phases do not exist or nothing would be left.
    """
    try:
        found = Scan()
        pass_over(path, found.read)
    except TraceError as problem:
        if "--partial" not in (problem.hint or ""):
            raise
        raise TraceError(str(problem), hint="copy or record the file again: only whole traces are trimmed") from problem
    steps, phases = _annotated(found, path)
    chosen = _chosen(path, steps, wish)
    plan = _plan(found, path, chosen, phases, wish)
    last_ms = (found.last_ns - (found.origin_ns or 0)) / 1e6
    nothing = UsageError(f"no event of {path} would be left", hint=f"its events start within {last_ms:.3f} ms")
    if plan.stretch.start_ns > found.last_ns:  # a sequence's slice, which is cut, would remain
        raise nothing
    with replacing_packed(output, force) as out:
        keep = Filter(plan, out)
        keys = pass_over(path, keep.read)
        if not keep.kept:
            raise nothing
        trimmed = _record(path, wish, chosen, trimmed_from_json(keys.get(TRIMMED_KEY)))
        kept = [step for step in steps if plan.stretch.start_ns <= step.start_ns < plan.stretch.end_ns]
        if isinstance(keys.get(KEY), dict) and len(kept) < len(steps):
            keys[KEY] = _trimmed_manifest(path, keys[KEY], kept)
        keep.close({**keys, "traceName": output.name, TRIMMED_KEY: to_builtins(trimmed)})
    return Outcome(sum(found.events_by_category.values()), keep.kept, keep.unplaced, trimmed)


def _annotated(found: Scan, path: Path) -> tuple[list[RecordedStep], list[tuple[int, int, str]]]:
    """Steps, and start, end and name of phases, as the SQL package finds them; times as in the file."""
    with tempfile.TemporaryDirectory(prefix="molprof-trim-") as folder:
        annotations = Path(folder, "annotations.json")
        with annotations.open("wb") as file:
            file.writelines((b'{"traceEvents":[', b",\n".join(found.annotations), b"]}"))
        with open_trace(annotations, all_args=False) as (engine, info):
            steps = read_recorded_steps(engine)
            _, phases = query_rows(engine, Query("phases", "SELECT ts, ts + dur, phase FROM molprof_phase ORDER BY ts"))
            origin = info.origin_ns
    placed = [RecordedStep(step.start_ns + origin, step.dur_ns, step.number, step.batch) for step in steps]
    return placed, [(start + origin, end + origin, name) for start, end, name in phases]


def _chosen(path: Path, steps: list[RecordedStep], wish: Wish) -> list[RecordedStep]:
    """The steps that are asked for by number."""
    if wish.steps is None:
        return []
    if not steps:
        raise UsageError(f"{path} has no annotated steps", hint="give a stretch of time with --from and --to")
    batch = steps[0].batch if wish.batch is None else wish.batch
    known = [step for step in steps if step.batch == batch]
    first, last = wish.steps
    chosen = [step for step in known if first <= step.number <= last]
    if not chosen:
        of = "" if batch is None else f" of batch {batch}"
        there = f"{min(step.number for step in known)}:{max(step.number for step in known)}" if known else "none"
        raise UsageError(f"{path} has no recorded steps {first}:{last}{of}", hint=f"those recorded are {there}")
    return chosen


def _plan(found: Scan, path: Path, chosen: list[RecordedStep], phases: list[tuple[int, int, str]], wish: Wish) -> Plan:
    origin = found.origin_ns or 0
    start_ns = origin if wish.start_ns is None else origin + wish.start_ns
    end_ns = np.iinfo(np.int64).max if wish.end_ns is None else origin + wish.end_ns
    if chosen:
        start_ns = max(start_ns, min(step.start_ns for step in chosen))
        end_ns = min(end_ns, max(step.end_ns for step in chosen))
    intervals = None
    if wish.phases:
        names = {name for _, _, name in phases}
        if unknown := [name for name in wish.phases if name not in names]:
            there = ", ".join(sorted(names))
            hint = f"those recorded are {there}" if there else "only molprof's own traces have phases"
            raise UsageError(f"{path} has no recorded phase {unknown[0]!r}", hint=hint)
        begins, ends, _ = zip(*(phase for phase in phases if phase[2] in wish.phases), strict=True)
        intervals = np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)
    known = set(found.events_by_category)
    if unknown := [name for name in (*wish.categories, *wish.without) if name not in known]:
        raise UsageError(f"{path} has no category {unknown[0]!r}", hint=f"it has {', '.join(sorted(known))}")
    return make_plan(found, Stretch(start_ns, int(end_ns), intervals), wish)


def _record(path: Path, wish: Wish, chosen: list[RecordedStep], earlier: Trimmed | None) -> Trimmed:
    """What the new file records about the trim."""
    # No figure uses Python stacks.
    whole = not (wish.phases or wish.categories or set(wish.without) - {STACK_CATEGORY})
    whole = whole and wish.start_ns is None and wish.end_ns is None
    return Trimmed(
        source=path.name,
        whole_steps=whole and (earlier is None or earlier.whole_steps),
        batch=chosen[0].batch if chosen else None,
        first_step=chosen[0].number if chosen else None,
        last_step=chosen[-1].number if chosen else None,
        phases=list(wish.phases),
        categories=list(wish.categories),
        without=list(wish.without),
        start_ns=wish.start_ns,
        end_ns=wish.end_ns,
    )


def _trimmed_manifest(path: Path, raw: dict[str, Any], kept: Sequence[RecordedStep]) -> dict[str, Any]:
    """The manifest with window and step times of the steps `kept`; all else is of the whole run. Raises TraceError."""
    try:
        manifest = from_json(raw)
    except TraceError as error:
        raise TraceError(f"{path}: {error}", hint=error.hint or MANIFEST_HINT) from error
    steps = [(step.batch, step.number) for step in kept if step.batch is not None]
    window = raw["window"]
    if len({batch for batch, _ in steps}) == 1:
        numbers = [number for _, number in steps]
        window = {"full": False, "batch": steps[0][0], "first_step": min(numbers), "last_step": max(numbers)}
    same = [
        sum(repeat.steps_ns[batch][step] for batch, step in steps)
        for repeat in manifest.timings.repeats
        if all(batch < len(repeat.steps_ns) and step < len(repeat.steps_ns[batch]) for batch, step in steps)
    ]
    timings = {
        **raw["timings"],
        "profiled_steps_ns": sum(step.dur_ns for step in kept),
        "unprofiled_steps_ns": round(median(same)) if same else 0,
        "profiled_wall_ns": None,
    }
    return {**raw, "window": window, "timings": timings}
