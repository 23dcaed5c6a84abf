"""Building of a `Report` from a loaded trace: its counts, the run, tables, the typical step, and checked sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType, convert
from msgspec.structs import asdict, replace

from molprof.analysis.figures import certificate
from molprof.analysis.figures.catalog import TABLES
from molprof.analysis.figures.model import (
    ALL,
    SCHEMA,
    STACK_CATEGORY,
    Counts,
    DeviceTime,
    FigureTable,
    Group,
    MemoryOperation,
    Report,
    ServedTimes,
    SumCheck,
    TraceFigures,
    agree,
)
from molprof.analysis.figures.program import read_program
from molprof.analysis.figures.requests import read_served
from molprof.analysis.figures.run import read_run
from molprof.analysis.figures.run_model import Run
from molprof.analysis.figures.typical_step import read_typical_step
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.load import MANIFEST_HINT
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row, query_rows
from molprof.common import attached
from molprof.common.errors import TraceError
from molprof.common.manifest import TRIMMED_KEY, Environment, Manifest, from_json, trimmed_from_json
from molprof.common.values import counted

_AMBIGUOUS = Query("work_calls", "SELECT COUNT() AS numbers, MIN(correlation) AS least FROM molprof_ambiguous_call")
DEVICES = Query("devices", "SELECT device, span_ns, busy_ns, idle_ns FROM molprof_device ORDER BY device")
OPERATIONS = Query(
    "memory_operations", "SELECT name, count, time_ns, bytes FROM molprof_memory_operation ORDER BY name"
)
# Of the packages that a trace lists, those that decide how fast it is.
_PACKAGES = ("flash_attn", "torch", "transformers", "triton", "vllm")
_LAUNCHES = Query(
    "launches",
    "SELECT launches, graph_launches, kernels, kernel_time_ns, kernel_names, launches_without_gpu_work,"
    " kernels_with_call, kernels_without_call FROM molprof_launch_count",
)
# What is counted in two ways, or by the manifest too.
_SUMS = Query(
    "phase_work",
    """
INCLUDE PERFETTO MODULE molprof.phase_bound;
INCLUDE PERFETTO MODULE molprof.tokens;
SELECT
  (SELECT IFNULL(SUM(dur), 0) FROM slice WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')) AS gpu_ns,
  (SELECT IFNULL(SUM(gpu_ns), 0) FROM molprof_phase_summary) AS phases_gpu_ns,
  (SELECT IFNULL(SUM(own_ns), 0) FROM molprof_phase) AS host_ns,
  (SELECT SUM(gpu_busy_ns) + SUM(sync_idle_ns) + SUM(launch_ns) FROM molprof_phase_bound) AS parts_ns,
  (SELECT COUNT() FROM molprof_token) AS tokens,
  (SELECT COUNT() FROM slice WHERE category = 'molprof.token') AS token_slices,
  (
    SELECT COUNT()
    FROM molprof_token AS token
    JOIN molprof_step AS step
      ON step.batch = token.batch AND step.step = token.step
  ) AS tokens_of_steps
""",
)


def build_report(engine: TraceProcessor, info: TraceInfo) -> Report:
    """Return all figures of the trace that `load_trace(path, engine)` described by `info`.

    Raises TraceError if its manifest is not one or too new, or if its calls cannot be told apart; EngineError or
    QueryError of the trace processor.
    """
    try:
        manifest = None if info.manifest is None else from_json(info.manifest)
        trimmed = trimmed_from_json(info.keys.get(TRIMMED_KEY))
        measured = info.keys.get(attached.KEY)
        served = UNSET if measured is None else read_served(attached.from_json(measured))
    except TraceError as error:
        raise TraceError(f"{info.path}: {error}", hint=error.hint or MANIFEST_HINT) from error
    refuse_ambiguous(engine, info.path)
    read = {
        "events_by_category": dict(sorted(info.events_by_category.items())),
        "device_names": tuple(str(device["name"]) for device in info.devices if device.get("name")),
        "software": software(info.keys),
        "environment": {} if manifest is None else _texts(manifest.environment),
        "capabilities": _capabilities(info.devices),
        # torch names what it records.
        "has_shapes": bool(info.keys.get("record_shapes")) if "schemaVersion" in info.keys else None,
        "trimmed": None if trimmed is None else trimmed.text(),
        "cut_out": "schemaVersion" in info.keys and not info.condition.has_span,
        "whole_steps": trimmed is None or trimmed.whole_steps,
    }
    trace = convert({**asdict(info), **read}, TraceFigures)
    operations = {name: MemoryOperation(*figures) for name, *figures in query_rows(engine, OPERATIONS)[1]}
    counts = Counts(**query_row(engine, _LAUNCHES), memory_operations=operations)
    devices = {device: DeviceTime(*times_ns) for device, *times_ns in query_rows(engine, DEVICES)[1]}
    trace = replace(trace, program=read_program(engine, info.keys, counts, len(devices)))
    run = None if manifest is None else read_run(engine, manifest, trace)
    checks = (*_checks(engine, trace, counts, run, manifest), *_of_stood(run, served))
    return Report(
        schema=SCHEMA,
        trace=trace,
        counts=counts,
        devices=devices,
        run=run,
        tables=_read_tables(engine, run is not None),
        checks=checks,
        findings=(),
        typical_step=read_typical_step(engine) if trace.whole_steps else None,
        certificate=certificate.certify(engine, info, counts, devices, checks),
        served=served,
    )


def _read_tables(engine: TraceProcessor, has_run: bool) -> tuple[FigureTable, ...]:
    tables: dict[str, FigureTable] = {}
    for name, query in TABLES.items():
        tables[name] = query.read(engine, has_run, tables)
    return tuple(table for name, table in tables.items() if table.rows or not TABLES[name].optional)


def _texts(environment: Environment) -> dict[str, str]:
    """Return the known texts of the environment."""
    values = {name: getattr(environment, name) for name in environment.__struct_fields__}
    return {name: str(value) for name, value in values.items() if value is not None}


def _capabilities(devices: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Return the distinct compute capabilities (major, minor) of the devices, as far as recorded."""
    versions = [(device.get("computeMajor"), device.get("computeMinor")) for device in devices]
    numbers = [(major, minor) for major, minor in versions if type(major) is int and type(minor) is int]
    return tuple(dict.fromkeys(numbers))


def software(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return versions by name, from a trace's top-level keys: of CUDA or HIP, an engine, and listed packages."""
    versions = {}
    for key, value in keys.items():
        name, is_version, _ = key.rpartition("_version")
        if is_version and isinstance(value, str):
            versions[name] = value
        elif key == "cuda_runtime_version" and isinstance(value, int):
            versions["CUDA"] = f"{value // 1000}.{value % 1000 // 10}"
        elif key == "hip_runtime_version" and isinstance(value, int):
            versions["HIP"] = f"{value // 10_000_000}.{value // 100_000 % 100}.{value % 100_000}"
    for section in (keys.get("distributedInfo"), keys.get("metadata")):
        section = section if isinstance(section, dict) else {}
        if isinstance(version := section.get("nccl_version"), str):
            versions["NCCL"] = version
        system = section.get("system")
        for text in system.get("pip_packages", ()) if isinstance(system, dict) else ():
            name, _, version = str(text).partition("==")
            if name in _PACKAGES:
                versions[name] = version
    return dict(sorted(versions.items()))


def refuse_ambiguous(engine: TraceProcessor, path: str) -> None:
    """Raise TraceError for a trace merged from several whose calls cannot be told apart.

    The engine must know the SQL package.
    """
    calls = query_row(engine, _AMBIGUOUS)
    if calls["numbers"]:
        numbers = counted(calls["numbers"], "correlation number")
        what = f"{numbers}, such as {calls['least']}, {'is' if calls['numbers'] == 1 else 'are'} of several calls"
        raise TraceError(
            f"{path}: {what}: it was merged from several traces, or its numbers are wrong, so that which call started"
            " which kernel is not known",
            hint="read the separate traces with molprof ranks, or merge them with process numbers that begin with the"
            " rank, such as rank3_1234",
        )


def _checks(
    engine: TraceProcessor, trace: TraceFigures, counts: Counts, run: Run | None, manifest: Manifest | None
) -> Iterator[SumCheck]:
    events = sum(
        count for category, count in trace.events_by_category.items() if trace.stacks or category != STACK_CATEGORY
    )
    left_out = "" if trace.stacks else " (Python stacks left out)"
    text = f"events in the file{left_out} = slices in the trace processor"
    yield _check("events", text, ALL, events, events - trace.lost_events)
    yield _check(
        "kernels",
        "kernel events in the file = kernels with a call + kernels without",
        ("gpu_work", "gpu_time", "links"),
        trace.events_read("kernel"),
        counts.kernels_with_call + counts.kernels_without_call,
    )
    if run is None or manifest is None:
        return
    sums, tokens = query_row(engine, _SUMS), run.generated_tokens
    of_steps: tuple[Group, ...] = ("steps",)
    text = "GPU time = phases + outside any phase, ns"
    yield _check("gpu_time", text, ("gpu_time", "steps"), sums["gpu_ns"], sums["phases_gpu_ns"])
    yield _check("tokens", "tokens in the manifest = tokens in the trace", of_steps, tokens, sums["tokens"])
    text = "tokens in the manifest = tokens of unfinished rows, summed over steps"
    yield _check("unfinished_rows", text, of_steps, tokens, _of_unfinished_rows(manifest))
    text = "token slices = tokens of the recorded steps"
    yield _check("token_slices", text, of_steps, sums["token_slices"], sums["tokens_of_steps"])
    if run.of_molecules:
        surplus = sum(molecule.kinds.count("j") + molecule.kinds.count("l") for molecule in manifest.molecules)
        text = "junk and filler tokens in the manifest = in the trace"
        yield _check("kinds", text, of_steps, surplus, run.junk_tokens + run.filler_tokens)
    if (masked := run.masked) is not None and masked.own is not None:
        text = "masked logits that molprof counted = that the processor counted"
        yield _check("masked_logits", text, of_steps, masked.total, masked.own)
    if (drafts := run.drafts) is not None:
        text = "drafted tokens = accepted + rejected by the model + rejected by the grammar + dropped"
        rest = drafts.rejected_by_model + drafts.rejected_by_grammar + drafts.dropped
        yield _check("drafts", text, of_steps, drafts.drafted, drafts.accepted + rest)
    if sums["parts_ns"] is not None:
        text = "phase time = GPU busy + host syncs + launching, ns"
        yield _check("phase_bound", text, ("host_time", "gpu_time"), sums["host_ns"], sums["parts_ns"])
    if run.wall_ns.median is not None:
        phases_ns = sum(phase.wall_ns or 0 for phase in run.phases.values())
        text = "unprofiled wall time = sum of its phases, ns"
        yield _check("wall_time", text, ("host_time",), run.wall_ns.median, phases_ns, tolerance_ratio=0.01)


def _of_stood(run: Run | None, served: ServedTimes | UnsetType) -> Iterator[SumCheck]:
    """Yield the check that tokens by where they stood are all tokens of these answers."""
    pairs = [] if run is None or run.forced is UNSET else [(run.forced, run.generated_tokens)]
    if served is not UNSET and served.masks is not None and served.masks.forced is not None:
        pairs.append((served.masks.forced, served.masks.tokens))
    for forced, tokens in pairs:
        if forced.stood is not UNSET:
            text = "tokens of answers = free + of tags + forced + inside of a schema"
            yield _check("stood", text, (), tokens, sum(forced.stood.values()))


def _check(
    id_: str, text: str, groups: tuple[Group, ...], left: int, right: int, tolerance_ratio: float = 0.0
) -> SumCheck:
    return SumCheck(id_, text, left, right, tolerance_ratio, agree(left, right, tolerance_ratio), groups)


def _of_unfinished_rows(manifest: Manifest) -> int:
    """Return the tokens of unfinished rows in all steps: one per row and step, or as many as the loop appended."""
    total = 0
    for molecule in manifest.molecules:
        steps = manifest.steps_per_batch[molecule.batch]
        tokens = molecule.step_tokens
        total += min(molecule.busy_steps, steps) if tokens is None else sum(tokens[:steps])
    return total
