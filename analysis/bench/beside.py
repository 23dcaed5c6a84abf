"""Advice on the fastest engine for a constraint, from captures and `bench masks` results in the folder of a trace.

Read when a report is shown, not when it is made: a report in the cache outlives what was beside its trace.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from molprof.analysis.bench.masks import EngineMasks, StepCost, engine_masks, step_costs
from molprof.analysis.bench.summary import MeasuredCase, summed
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings.remedy import engine_advice, question
from molprof.common.answer_counts import answer_counts
from molprof.common.bench_records import digest, read_results
from molprof.common.cache import cache_key, read_entry, write_entry
from molprof.common.engine_settings import CONSTRAINTS
from molprof.common.errors import MolprofError
from molprof.common.manifest import Manifest, ProgramTotals, Repeat, from_json
from molprof.common.measured import MeasuredRun
from molprof.common.values import percent_text, time_text

_FOLDER, _MOST_CACHED = "captures", 1 << 20
# Larger files take too long to look into, and of more there is no end.
_MOST_BYTES, _MOST_FILES = 32 << 20, 50
_TRACES, _RESULTS = (".json.gz", ".json"), ".jsonl"
# Engines whose costs differ by less are alike.
_ALIKE = 0.9
_KINDS = ("schema", "regex", "choices", "grammar")


class _Capture(msgspec.Struct, frozen=True):
    """A captured run: what it measured, and what must be the same for two to be compared."""

    measured: MeasuredRun
    alike: str


class _Keys(msgspec.Struct):
    """The keys that are read of a trace file."""

    molprof: msgspec.Raw = msgspec.Raw(b"null")


def with_measured(report: Report) -> Report:
    """Name the fastest engine measured in the trace's folder in the report's fix of a constraint.

    That is done where the fix only asks for such a measurement; other reports are returned as they are.
    """
    run = report.run
    finding = next((item for item in report.findings if item.id == "constraint"), None)
    if run is None or finding is None or not (ask := question(run)) or ask not in finding.fix:
        return report
    path = Path(report.trace.path)
    try:
        names = sorted(entry.name for entry in os.scandir(path.absolute().parent) if _is_small(entry))[:_MOST_FILES]
        fix = _of_captures(path, names) or _of_results(run, finding, path, names)
    except (OSError, MolprofError):  # no file, or gone meanwhile
        return report
    if not fix:
        return report
    findings = [replace(item, fix=item.fix.replace(ask, fix)) if item is finding else item for item in report.findings]
    return replace(report, findings=tuple(findings))


def _is_small(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith((*_TRACES, _RESULTS)) and entry.is_file() and entry.stat().st_size <= _MOST_BYTES


def _of_captures(path: Path, names: list[str]) -> str:
    """Return advice from captures of other engines with the same constraint, prompts, settings and machine."""
    mine = _capture(path)
    if mine is None:
        return ""
    others: dict[str, MeasuredRun] = {}
    for name in names:
        other = path.parent / name
        if name.endswith(_TRACES) and name != path.name and (theirs := _capture(other)) and theirs.alike == mine.alike:
            others[str(other)] = replace(theirs.measured, name=str(other))
    advice: str = engine_advice(mine.measured, [*others.values()], lambda run: f"(captured apart: {run.name})")
    return advice


def _capture(path: Path) -> _Capture | None:
    """Return the figures of a captured run; None for other files, and for runs without a constraint."""
    key = cache_key((path,), "capture")
    if key is not None and (kept := read_entry(_FOLDER, key)) is not None:
        return msgspec.json.decode(kept, type=_Capture | None)  # type: ignore[call-overload, no-any-return]
    try:
        content = path.read_bytes()
        raw = gzip.decompress(content) if path.name.endswith(".gz") else content
        manifest = from_json(msgspec.json.decode(msgspec.json.decode(raw, type=_Keys).molprof))
        capture = _measured(manifest)
    except (OSError, EOFError, ValueError, MolprofError):
        capture = None
    if key is not None:
        write_entry(_FOLDER, key, msgspec.json.encode(capture), _MOST_CACHED)
    return capture


def _measured(manifest: Manifest) -> _Capture | None:
    repeats, timings = manifest.timings.repeats, manifest.timings
    constraint = _constraint(manifest.resolved.processor_parameters)
    if not any(map(_steps_ns, repeats)) or constraint is None or isinstance(manifest.program, ProgramTotals):
        return None
    steps, answers = sum(manifest.steps_per_batch), manifest.molecules
    parts = {name: 0 for repeat in repeats for name in repeat.constraint_ns}
    differ = ("processor", "prompts", *CONSTRAINTS)  # prompts are compared by their texts
    settings = {name: value for name, value in asdict(manifest.settings).items() if name not in differ}
    machine = [getattr(manifest.environment, name) for name in ("cpu", "cores", "threads", "gpu", "torch")]
    prompts = [item.prompt for item in answers]
    measured = MeasuredRun(
        name="",
        processor=manifest.resolved.processor,
        rounds=[*range(len(repeats))],
        step_ns=[_steps_ns(repeat) / steps for repeat in repeats],
        phase_ns=sum(repeat.phases_ns.get("processor", 0) for repeat in repeats) / len(repeats) / steps,
        constraint_ns={
            name: sum(repeat.constraint_ns.get(name, 0) for repeat in repeats) / len(repeats) / steps for name in parts
        },
        once_ns=timings.processor_once_ns,
        once_parts_ns=timings.processor_parts_ns,
        **answer_counts(answers),
        steps=steps,
    )
    return _Capture(measured, digest({"all": [constraint, prompts, machine, settings]}))


def _steps_ns(repeat: Repeat) -> int:
    return sum(map(sum, repeat.steps_ns))


def _constraint(parameters: dict[str, Any] | None) -> tuple[str, str] | None:
    """Return the kind and the text of a processor's constraint."""
    return next(((kind, str(parameters[kind])) for kind in _KINDS if parameters and kind in parameters), None)


def _of_results(run: Run, finding: Finding, path: Path, names: list[str]) -> str:
    """Return advice from results of `bench masks` for the run's constraint and tokenizer."""
    if (constraint := _constraint(run.setup.processor_parameters)) is None:
        return ""
    content = _content(*constraint)
    files = [path.parent / name for name in names if name.endswith(_RESULTS)]
    files += [item for item in Path.cwd().glob(f"*{_RESULTS}") if item.parent != path.absolute().parent]
    for file in sorted(files, key=lambda file: -file.stat().st_mtime):
        cases = [
            item
            for item in _cases(file)
            if (item.settings.get("content"), item.settings.get("tokenizer")) == (content, run.setup.tokenizer)
        ]
        for environment in dict.fromkeys(item.environment for item in cases):
            mine = [item for item in cases if item.environment == environment]
            if fix := _by_cost(run, finding, engine_masks(mine), file):
                return fix
    return ""


def _cases(file: Path) -> Iterator[MeasuredCase]:
    try:
        if file.stat().st_size <= _MOST_BYTES:
            yield from (item for item in summed(read_results(file)) if item.masks)
    except (OSError, MolprofError):  # another kind of file
        return


def _content(kind: str, text: str) -> str:
    """Return the digest that a case of `bench masks` has of one constraint."""
    try:
        one = {"schema": json.loads(text), "tests": []} if kind == "schema" else {"constraint": (kind, text)}
    except ValueError:
        return ""
    return digest({"schemas": [digest(one)]})


def _by_cost(run: Run, finding: Finding, engines: list[EngineMasks], file: Path) -> str:
    """Return advice by the cost of a step with about as many rows as the run has."""
    rows = run.row_steps / run.steps if run.steps else run.setup.batch_size
    device = (run.setup.device or "cpu").partition(":")[0]
    costs = [cost for cost in step_costs(engines) if (cost.threads, cost.device) == (None, device)]
    nearest = min((cost.rows for cost in costs), key=lambda count: abs(count - rows), default=0)
    of = {cost.engine.removesuffix("-core"): cost for cost in costs if cost.rows == nearest}
    current = of.get(run.setup.processor or "")
    if current is None or len(of) < 2:
        return ""
    refused = {item.engine: len(item.wrong(True)) for item in engines}
    able = [cost for cost in of.values() if refused[cost.engine] <= refused[current.engine]]
    best = min(able, key=lambda cost: cost.total.mean_ns)
    where = f"in {file} (molprof bench masks, without the model)"
    each = f"per step of {nearest} row{'s' * (nearest > 1)}"
    if best.total.mean_ns > _ALIKE * current.total.mean_ns:
        return f"Keep it: of {len(of)} engines none costs less, {time_text(current.total.mean_ns)} {each} {where}."
    return f"{_taken(best, current, each, where)}{_saved_share(finding, best, current)}."


def _taken(best: StepCost, current: StepCost, each: str, where: str) -> str:
    times = f"{time_text(best.total.mean_ns)} {each}, not {time_text(current.total.mean_ns)}"
    return f"Take --processor {best.engine.removesuffix('-core')}: {times}, {where}"


def _saved_share(finding: Finding, best: StepCost, current: StepCost) -> str:
    """Return the share of a step that the best engine saves, as text; empty where it is not known."""
    share = finding.figures.get("share_ratio")
    if share is None:
        return ""
    return f"; a step can lose about {percent_text(share * (1 - best.total.mean_ns / current.total.mean_ns))}"
