"""Lines and sections of a report on another program: its steps, phases, logits processors and times.

And what of steps, phases, tokens, stacks and shapes is not recorded, and how to record it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from molprof.analysis.compare.statistics import LEAST_REPEATS, paired_ratio
from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import STACK_CATEGORY
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Field, Section
from molprof.common.manifest import ProcessorCalls, ProgramTotals
from molprof.common.paired import PairedRuns
from molprof.common.values import count_text, counted, factor_text, per, percent_text, time_text

# Below this share of the recorded span a phase is not worth a word.
_LEAST_RATIO = 0.01
# The phase that holds all others, and the end of names of phases of single requests, which are in others.
_WHOLE, _PART = "generate", "_per_request"
_PROGRAMS = ("vllm", "sglang", "tensorrt_llm", "transformers")
# How an engine is asked for it.
_STACKS = {"vllm": " (vLLM: torch_profiler_with_stack)", "sglang": " (SGLang: with_stack of /start_profile)"}
_SCHEDULER = {"vllm": " (vLLM: VLLM_ENABLE_V1_MULTIPROCESSING=0, or molprof run --processes)"}
_ORIGIN = {True: "the program", False: "generate's arguments or config"}


def program_lines(report: Report) -> Iterator[str]:
    """Yield the longest phases, and logits processors, each as far as recorded."""
    phases: Any = report.table("engine_phases").to_json()
    rows = [row for row in phases if row["time_ns"] and row["phase"] != _WHOLE and not row["phase"].endswith(_PART)]
    rows = [row for row in rows if row["time_ratio"] >= _LEAST_RATIO]
    rows.sort(key=lambda row: (-row["time_ns"], row["phase"]))
    if rows:
        shares = ", ".join(f"{row['phase']} {percent_text(row['time_ratio'])}" for row in rows[:4])
        yield f"Phases of {rows[0]['program']} on the host, of the recorded span: {shares}."
        span_ns = per(rows[0]["time_ns"], rows[0]["time_ratio"])
        processors: Any = report.table("logits_processors").to_json()
        each = ", ".join(f"{item['source']} {percent_text(per(item['time_ns'], span_ns))}" for item in processors[:3])
        if each:
            yield f"Logits processors, of the same: {each}."
    yield from missing(report)


def missing(report: Report) -> Iterator[str]:
    """Yield what a foreign trace lacks that matters for it; without GPU work in full, with how to record it."""
    lacks = unrecorded(report)
    if "steps" in lacks and not report.trace.gpu_recorded:
        yield f"Steps, phases and logits processors are not recorded: {lacks['steps']}."
        yield "Did the model run on a GPU? Then record activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
    # A note of findings tells of phases of an engine.
    elif {"steps", "stacks", *(("tokens",) if _program(report) else ())} & lacks.keys():
        some = {"phases": "some phases"} if report.table("engine_phases").rows else {}
        names = ", ".join(some.get(name, name) for name in lacks)
        yield f"Not recorded: {names} (report --all says how to record them)."


def unrecorded_sections(reports: Reports) -> list[Section]:
    """Return the sections on what foreign traces lack, and how to record it; none where they lack nothing."""
    fields: tuple[Field, ...] = (("not recorded", "text", "0"), ("how to record it", "text", "1"))
    table = reports.table(lambda report: list(unrecorded(report).items()), *fields)
    return [Section("Not recorded", table=table)] if table.rows else []


def unrecorded(report: Report) -> dict[str, str]:
    """Return how to record what a foreign trace lacks, by its name."""
    if report.run is not None or not report.trace.events_by_category:
        return {}
    program, steps = _program(report), report.table("step_latency").rows
    stacks, phases = STACK_CATEGORY in report.trace.events_by_category, report.table("engine_phases").to_json()
    lacks = {}
    if not steps and stacks:
        lacks["steps"] = 'its Python stacks hold no known loop; mark them with torch.profiler.record_function("step 0")'
    elif not steps:
        lacks["steps"] = "operators do not show them; record Python stacks (with_stack=True), or run molprof capture"
    none = ", ".join(str(row["phase"]) for row in phases if row["count"] is None)
    if none and stacks:
        lacks["phases"] = f"{none}: record whole steps, in the scheduler's process too{_SCHEDULER.get(program, '')}"
    elif none or not phases:
        how = "with_stack=True marks those of vLLM, SGLang and generate, molprof.phase those of other loops"
        lacks["phases"] = f"{none}: {how}" if none else how
    steps_rows: Any = report.table("steps").to_json()
    has_tokens = report.table("step_tokens").rows or any(row["tokens"] for row in steps_rows)
    if report.tokens is None and not has_tokens:
        lacks["tokens"] = (
            "record_shapes=True with with_stack=True shows those of generate; report --tokens N takes their number"
        )
    if not stacks:
        lacks["stacks"] = f"with_stack=True shows which function asks for work{_STACKS.get(program, '')}"
    if report.trace.has_shapes is False:
        lacks["shapes"] = "record_shapes=True shows sizes of operators, for report by shape"
    return lacks


def _program(report: Report) -> str:
    """Return the engine or library whose steps or phases are recorded; empty if there is none."""
    for name, column in (("engine_phases", "program"), ("steps", "source")):
        for row in report.table(name).to_json():
            if row[column] in _PROGRAMS:
                return str(row[column])
    return ""


def processors_section(reports: Reports) -> Section:
    """Return the logits processors by class and location."""
    return reports.of_runs(
        "Logits processors", _processors,
        ("place", "index"), ("class", "text", "name"), ("from", "text", lambda item: _ORIGIN[item.own]),
        ("batches", "count"), ("steps", "count"), ("time", "ns", "time_ns"),
        ("per step", "ns", lambda item: per(item.time_ns, item.steps)), notes=reports.notes(_of_processors),
    )  # fmt: skip


def _processors(run: Run) -> Sequence[ProcessorCalls]:
    return run.program.processors if isinstance(run.program, ProgramTotals) else ()


def _of_processors(report: Report) -> Iterator[str]:
    if report.run is not None and _processors(report.run):
        yield (
            "steps and time: unprofiled; a processor that draws a token (temperature, top_k and the like) is in the"
            " phase sampling, and has no time of its own"
        )
        if step_ns := per(report.run.phases["processor"].wall_ns, report.run.steps):
            yield (
                f"the phase processor takes {time_text(step_ns)} per step: in no class are the loop over all of them "
                "and molprof's marks, and its profiled steps count with the median of the others"
            )


def program_times(run: Run) -> str | None:
    """Return how the time of a program was measured; None for a capture."""
    if not isinstance(run.program, ProgramTotals):
        return None
    if run.session is not None or run.wall_ns.repeats > 1:
        several = f"median of {run.wall_ns.repeats} runs" if run.wall_ns.repeats > 1 else "one run"
        return f"{several} without the profiler"
    return f"one run; its {counted(run.program.estimated_steps, 'profiled step')} count with the median of the others"


def paired_lines(run: Run) -> Iterator[str]:
    """Yield the cost of a program's logits processors, by paired runs with and without them, and what is off."""
    program = run.program
    if not isinstance(program, ProgramTotals):
        return
    if isinstance(program.switched_off, list) and program.switched_off:
        yield f"Its constraint is switched off: {', '.join(program.switched_off)}."
    if not isinstance(paired := program.paired, PairedRuns):
        return
    here, there = paired.wall_ns, paired.other_wall_ns
    if not here:
        yield f"No run without {', '.join(paired.switched_off)} is paired: {'; '.join(paired.failed[:1])}."
        return
    text = (
        f"Without {', '.join(paired.switched_off)}: {time_text(fmean(there))} for "
        f"{_tokens(paired.other_tokens)}; with it {time_text(fmean(here))} for {_tokens(paired.tokens)}, "
        f"{_ratio(here, there)}, means of {counted(len(here), 'paired round')}"
    )
    if paired.lengths_differ and all((*paired.tokens, *paired.other_tokens)):
        each = [[ns / count for ns, count in zip(*side, strict=True)] for side in (
            (here, paired.tokens), (there, paired.other_tokens)
        )]  # fmt: skip
        text += f"; per token {_ratio(*each)}"
    yield f"{text}."


def _tokens(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return counted(low, "token") if low == high else f"{count_text(low)} to {counted(high, 'token')}"


def _ratio(here: Sequence[float], there: Sequence[float]) -> str:
    """Return the ratio of the means, with its interval."""
    text = factor_text(fmean(here) / fmean(there))
    interval = paired_ratio(here, there)
    if interval is None:
        return f"{text} (no interval of fewer than {LEAST_REPEATS} rounds)"
    return f"{text} ({factor_text(interval.low)} to {factor_text(interval.high)})"


def program_notes(run: Run) -> Iterator[str]:
    """Yield notes on time in no phase."""
    program = run.program
    if isinstance(program, ProgramTotals) and isinstance(program.paired, PairedRuns):
        yield from (f"a run that is not counted, or failed: {line}" for line in program.paired.failed)
    if not isinstance(program, ProgramTotals) or program.own_ns is None:
        return
    before, after = time_text(program.before_ns), time_text(program.after_ns)
    own_work = f"molprof's own work, which no time contains: {time_text(program.own_ns)}"
    yield f"not in the whole run: {before} before the first batch and {after} after the last; {own_work}"
    if program.missed:
        yield f"not recorded: {count_text(program.missed)} calls of generate, in other threads while one was recorded"
