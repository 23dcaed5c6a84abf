"""What one GPU has to show, in Markdown: processors, ways of decoding, benchmarks, and what ran."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from folder import REHEARSAL, SWEEPS
from gpu_parts import FULL, MODELS, parts
from records import Costs, Doctor, History, Overhead, Ways, read_record
from shared import table
from shown import (
    BEST_RATIO,
    coordinate_tables,
    cost_tables,
    forced_limit,
    machine,
    overhead_table,
    processor_ratio,
    ratios,
    unconstrained,
    way_tables,
)

from molprof.analysis.documents.benchmark import bench_document
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import COMPARED
from molprof.analysis.render import render
from molprof.analysis.render.markdown import literal
from molprof.common.bench_records import read_results
from molprof.common.document import Column, Document, Section, Table
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import NOT_RECORDED, by_unit, factor_text, number_text, per, percent_text, time_text

# Of each step, for the whole batch.
MOST_LAUNCHES = {"vectorized": 2, "truncate": 1, "grammar": 1}
MOST_STEP_RATIO = 0.01
_T = TypeVar("_T")


@dataclass(frozen=True)
class Gpu:
    """The results of one GPU: what ran, its reports by name (`qwen-generic`), and its records."""

    history: History
    reports: Mapping[str, Report]
    folder: Path

    @property
    def name(self) -> str:
        device = literal(self.history.runs[-1].device)
        return f"Rehearsal on {device}: no evidence" if self.folder.name == REHEARSAL else device

    def record(self, name: str, kind: type[_T]) -> _T | None:
        path = self.folder / name
        return read_record(path, kind) if path.exists() else None

    def records(self, name: str, kind: type[_T]) -> list[_T]:
        found = (self.record(f"{name}-{preset}.json", kind) for preset in MODELS)
        return [record for record in found if record is not None]


def _absent(part: str, what: str) -> str:
    return f"{what}: not measured yet. `python benchmarks/gpu.py FOLDER --part {part}` measures it."


def processors(gpu: Gpu) -> Iterator[str]:
    """Cost of the processors, their work in a step, and the targets."""
    costs = gpu.records("processors", Costs)
    yield from (cost_tables(record, "####") for record in costs) if costs else [_absent("costs", "Cost")]
    heads = ("run", "launches per step", "host syncs per step", "share of host time", "share of GPU time")
    runs = {name: report for name, report in gpu.reports.items() if _constrained(name, report)}
    rows = [(name, *_processor_cells(report)) for name, report in runs.items()]
    if rows:
        yield "Of the processor phase in the recorded steps; shares of host time are of the timed passes:"
    yield table(heads, rows) if rows else _absent("qwen", "Launches and host syncs of the processors")
    if targets := [*_launch_targets(runs), *_text_targets(costs)]:
        yield _verdicts(targets)
    for record in costs:
        yield "Bond lengths, as under [coordinates](#coordinates):"
        yield coordinate_tables(record, "#####")


def _constrained(name: str, report: Report) -> bool:
    return report.run is not None and report.run.setup.processor is not None and "static" not in name


def _figure(report: Report, name: str) -> float | None:
    value = COMPARED[name].value(report)
    assert not isinstance(value, str)
    return value


def _processor_figures(report: Report) -> tuple[float | None, ...]:
    """Launches and host syncs per step, share of host and of GPU time, of the processor phase."""
    run = report.run
    assert run is not None
    phase = run.phases["processor"]
    spent = [run.phases[name].wall_ns or 0 for name in ("prefill", *STEP_PHASES) if name in run.phases]
    return (
        _figure(report, "masking_launches"),
        _figure(report, "masking_syncs"),
        per(phase.wall_ns, sum(spent)),
        per(phase.gpu_ns, run.window.gpu_ns),
    )


def _processor_cells(report: Report) -> list[str]:
    units = ("number", "number", "ratio", "ratio")
    return [by_unit(unit, value) for unit, value in zip(units, _processor_figures(report), strict=True)]


# A target: what, of which run, its figure as text, and whether it is reached; None: not recorded.
Target = tuple[str, str, str, "bool | None"]


def _launch_targets(runs: Mapping[str, Report]) -> Iterator[Target]:
    for name, report in runs.items():
        _, _, processor = name.partition("-")
        if (most := MOST_LAUNCHES.get(processor)) is None:
            continue
        launches, syncs, host, device = _processor_figures(report)
        yield f"launches per step at most {most}", name, number_text(launches), _within(launches, most)
        yield "host syncs per step 0", name, number_text(syncs), _within(syncs, 0)
        # Neither share alone says what the step waits for.
        share = None if host is None or device is None else max(host, device)
        what = f"share of a step at most {percent_text(MOST_STEP_RATIO)}, of host and GPU time the larger"
        yield what, name, percent_text(share), _within(share, MOST_STEP_RATIO)


def _text_targets(costs: Sequence[Costs]) -> Iterator[Target]:
    for preset, known in (pair for record in costs for pair in record.models.items()):
        for cost in known:
            if cost.name in MOST_LAUNCHES:
                synchronized = processor_ratio(cost)
                what = f"share of a step at most {percent_text(MOST_STEP_RATIO)}, synchronized after each phase"
                reached = _within(synchronized, MOST_STEP_RATIO)
                yield what, f"{preset}-{cost.name}", percent_text(synchronized), reached
            if cost.name in ("truncate", "grammar"):
                bad = sum(cost.kinds.get(letter, 0) for letter in "jl") + cost.malformed_blocks
                valid = [answer.valid for answer in cost.answers]
                text = f"{bad}; {sum(map(bool, valid))} of {len(valid)} valid"
                reached = None if None in valid else bad == 0 and all(valid)
                yield "junk, filler and malformed 0, all valid", f"{preset}-{cost.name}", text, reached


def _within(value: float | None, most: float) -> bool | None:
    return None if value is None else value <= most


def _verdicts(targets: Sequence[Target]) -> str:
    words = {True: "reached", False: "**missed**", None: NOT_RECORDED}
    return table(
        ("target", "run", "measured", "outcome"), [(*cells, words[reached]) for *cells, reached in targets], left=2
    )


def decoding(gpu: Gpu) -> Iterator[str]:
    """Ways of decoding, the targets, and graphs under a static cache."""
    records = gpu.records("decoding", Ways)
    yield from map(way_tables, records) if records else [_absent("costs", "Ways of decoding")]
    if records:
        yield _verdicts([target for record in records for target in _way_targets(record)])
    heads = (
        "run", "graph launches per step", "launches per step", "compiled in timed passes", "first pass, extra",
        "time per token", "time over no LP, dynamic cache",
    )  # fmt: skip
    names = [name for preset in MODELS for name in gpu.reports if name == preset or f"{preset}-static" in name]
    rows = [(name, *_graph_cells(gpu, name)) for name in names]
    if not any("static" in name for name in names):
        yield _absent("graphs", "Static cache and compiled forward")
        return
    yield "Static cache and compiled forward, from the traces. The first pass compiles, so it stands apart:"
    yield table(heads, rows)


def _way_targets(record: Ways) -> Iterator[Target]:
    for preset, ways in record.models.items():
        default, plain = unconstrained(ways)
        for way in ways:
            if way.way == "forced runs":
                value, most = statistics.median(ratios(way, plain)), forced_limit(way)
                what = "forced runs over no LP, at most 1.05 x (1 - share of forced tokens)"
                text = f"{factor_text(value)}, at most {factor_text(most)}"
                yield what, f"{preset}, {way.processor}", text, value <= most
        constrained = [way for way in ways if way.processor is not None]
        best = min(constrained, key=lambda way: statistics.median(ratios(way, default)), default=None)
        if best is not None:
            value = statistics.median(ratios(best, default))
            what = f"best constrained over default unconstrained, at most {factor_text(BEST_RATIO)}"
            yield what, f"{preset}, {best.processor}, {best.way}", factor_text(value), value <= BEST_RATIO


def _graph_cells(gpu: Gpu, name: str) -> tuple[str, ...]:
    report, plain = gpu.reports[name], gpu.reports.get(name.partition("-")[0])
    run = report.run
    assert run is not None
    compiles = [repeat.compiles for repeat in run.repeats]
    known = [count for count in compiles if count is not None]
    return (
        number_text(_figure(report, "graph_launches_per_step")),
        number_text(_figure(report, "launches_per_step")),
        number_text(sum(known) if len(known) == len(compiles) else None),
        time_text(run.first_pass_extra_ns),
        time_text(_figure(report, "ns_per_token")),
        factor_text(per(_figure(report, "wall_ns"), None if plain is None else _figure(plain, "wall_ns"))),
    )


def benchmarks(gpu: Gpu) -> Iterator[str]:
    """What `molprof bench show` shows of each file."""
    for name in SWEEPS:
        path = gpu.folder / name
        if path.exists():
            text = render(bench_document(read_results(path), name), "markdown")
            body = text.partition("\n")[2].replace("\n### ", "\n##### ").strip()
            yield f"#### {path.stem}\n\n{body}"
        else:
            yield _absent("attention", f"`{path.stem}`")


def evidence(gpu: Gpu) -> Iterator[str]:
    """What ran, by part and step, with its environment; what has not; the doctor's lines; what recording costs."""
    for run in gpu.history.runs:
        rows = [
            (part, step.name, step.state, step.seconds * 1e9, " ".join((step.why or "").split()))
            for part, found in run.parts.items()
            for step in found.steps
        ]
        columns = (Column("part"), Column("step"), Column("state"), Column("time", "ns"), Column("why"))
        size = "" if run.size == FULL else f" ({run.size} sizes)"
        yield f"{machine(run.environment)}, molprof {literal(run.environment.molprof)}; {run.started[:10]}{size}."
        yield _shown(Table(columns, rows))
    ran = {step.name for run in gpu.history.runs for part in run.parts.values() for step in part.steps}
    left = {name: [step.name for step in part.steps if step.name not in ran] for name, part in parts(FULL).items()}
    if any(left.values()):
        lines = [f"- `--part {name}`: {', '.join(steps)}" for name, steps in left.items() if steps]
        yield "\n".join(["Steps of `python benchmarks/gpu.py FOLDER` that have not run:", "", *lines])
    if (doctor := gpu.record("doctor.json", Doctor)) is not None:
        checks = [(check.name, check.state, check.value) for check in doctor.checks]
        shown = _shown(Table((Column("check"), Column("state"), Column("value")), checks))
        yield f"<details><summary>molprof doctor</summary>\n\n{shown}\n\n</details>"
    overhead = gpu.records("overhead", Overhead)
    if not overhead:
        yield _absent("overhead", "Cost of recording")
        return
    yield (
        "Cost of recording, as ratios to the same steps, and a pass, without it. The timestamps are those of phases, "
        "which timed passes take:"
    )
    yield overhead_table(overhead)


def _shown(table: Table) -> str:
    """A table whose texts may come from anywhere."""
    return render(Document("", (Section("", table=table),), dict), "markdown").strip()
