"""One loaded trace in, one `Report` out."""

from __future__ import annotations

from molprof.analysis.figures import counts, timeline
from molprof.analysis.figures.catalog import TABLES
from molprof.analysis.figures.certificate import certify
from molprof.analysis.figures.checks import AMBIGUOUS, refuse_ambiguous, run_checks, trace_checks
from molprof.analysis.figures.counts import read_counts, read_devices
from molprof.analysis.figures.model import SCHEMA, Report, TraceFigures
from molprof.analysis.figures.run import read_run
from molprof.analysis.figures.run_model import filled
from molprof.analysis.figures.timeline import read_typical_step
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.load import MANIFEST_HINT
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query
from molprof.common.errors import TraceError
from molprof.common.manifest import TRIMMED_KEY, from_json, trimmed_from_json


def queries(has_run: bool) -> tuple[Query, ...]:
    """What `build_report` asks of every trace, or of every captured one."""
    tables = (query for table in TABLES.values() if has_run or not table.needs_run for query in table.queries)
    return (AMBIGUOUS, *counts.QUERIES, *timeline.QUERIES, *tables, *certify.QUERIES)


def build_report(engine: TraceProcessor, info: TraceInfo) -> Report:
    """All figures of the trace that `load_trace(path, engine)` described by `info`.

    Raises TraceError if its manifest is not one or too new, or if its calls cannot be told apart; EngineError or
    QueryError of the trace processor.
    """
    try:
        manifest = None if info.manifest is None else from_json(info.manifest)
        trimmed = trimmed_from_json(info.keys.get(TRIMMED_KEY))
    except TraceError as error:
        raise TraceError(f"{info.path}: {error}", hint=error.hint or MANIFEST_HINT) from error
    refuse_ambiguous(engine, info.path)
    trace = filled(
        TraceFigures,
        info,
        events_by_category=dict(sorted(info.events_by_category.items())),
        device_names=tuple(str(device["name"]) for device in info.devices if device.get("name")),
        trimmed=None if trimmed is None else trimmed.text(),
        whole_steps=trimmed is None or trimmed.whole_steps,
    )
    counted, devices = read_counts(engine), read_devices(engine)
    sums = trace_checks(trace, counted)
    run = None
    if manifest is not None:
        run = read_run(engine, manifest, trace)
        sums += run_checks(engine, run, manifest)
    typical_step = read_typical_step(engine) if trace.whole_steps else None
    return Report(
        schema=SCHEMA,
        trace=trace,
        counts=counted,
        devices=devices,
        run=run,
        tables=tuple(table.read(engine, manifest is not None) for table in TABLES.values()),
        checks=sums,
        findings=(),
        typical_step=typical_step,
        certificate=certify.certify(engine, info, counted, devices),
    )
