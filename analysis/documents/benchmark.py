"""Results of benchmarks as a document: speed, start-up, phases and what did not run, for each environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from molprof.analysis.bench.summary import (
    MeasuredCase,
    environment_text,
    sdpa_key,
    short,
    short_message,
    summed,
    varying,
)
from molprof.analysis.documents.masks import masks_data, masks_records, masks_sections
from molprof.analysis.documents.plots import BENCH_PLOTS, plot_section
from molprof.common.bench_records import GENERATE, SCHEMA, SDPA, Results
from molprof.common.document import Document, Field, Name, Section, Table, named, records, table_of
from molprof.common.manifest import STEP_PHASES
from molprof.common.process import OK
from molprof.common.values import Unit, counted, per

_BATCH = "batch_size"
_PHASES = ("prefill", *STEP_PHASES)
_MEDIANS = ("peak_memory_bytes", "kv_cache_bytes", "tokens", "valid_molecules", "molecules")


def bench_document(results: Results, title: str) -> Document:
    """Return all that a results file holds. Raises TraceError where a result's figures have a wrong type."""
    measured = summed(results)
    sections = [plot_section(BENCH_PLOTS, results)]
    for name in dict.fromkeys(item.environment for item in measured):
        mine = [item for item in measured if item.environment == name]
        where = environment_text(results.environments.get(name))
        sections.append(Section(f"Environment {name}", notes=(where, _counts(mine), *_doubts(mine))))
        gpu = results.environments.get(name, {}).get("gpu") is not None
        sections += _generation([item for item in mine if item.kind == GENERATE], gpu)
        kernels = [item for item in mine if item.kind == SDPA and item.times_ns]
        for key in dict.fromkeys(map(sdpa_key, kernels)):
            sections.append(_sdpa([item for item in kernels if sdpa_key(item) == key]))
        sections += masks_sections(mine)
        sections += _not_ok(mine)

    return Document(
        title,
        tuple(sections),
        lambda: {
            "schema": SCHEMA, "environments": results.environments, "runs": results.runs, "cases": _rows(results),
            "masks": masks_data(measured),
        },
        lambda: _records(results),
        results.notes,
    )  # fmt: skip


def _records(results: Results) -> Table:
    """Return a column for all that any case has, one for each phase, none for stacks; then the times of masks."""
    flat = []
    for row in _rows(results):
        plain = {name: value for name, value in row.items() if name not in ("phases", "stack")}
        flat.append(plain | {f"{name}_ratio": value for name, value in (row["phases"] or {}).items()})
    return records([*flat, *masks_records(summed(results))])


def _rows(results: Results) -> list[dict[str, Any]]:
    """Return a row per case and environment: settings, status and medians. None: not recorded."""
    return [
        named(item, "environment", "case", "label") | item.settings | named(item, *_RESULT) for item in summed(results)
    ]


def _of_median(name: str) -> Name:
    return name, lambda item: item.median(name)


def _doubts(items: Sequence[MeasuredCase]) -> Iterator[str]:
    """Yield a line for each group of cases whose times are in doubt for the same reasons."""
    reasons: dict[tuple[str, ...], list[MeasuredCase]] = {}
    for item in items:
        if item.doubts:
            reasons.setdefault(item.doubts, []).append(item)
    names = {kind: _varied([item for item in items if item.kind == kind]) for kind in (GENERATE, SDPA)}
    for doubts, cases in reasons.items():
        named = ", ".join(short(item, names[item.kind]) for item in cases)
        yield f"times are not reliable: {named}: during the timed passes {'; '.join(doubts)}"


def _varied(items: Sequence[MeasuredCase]) -> list[str]:
    """Return the settings in which cases of a kind differ.

    The number of prompts only where the batch size does not vary.
    """
    names = varying(items)
    return varying(items, "count") if _BATCH in names else names


def _counts(items: Sequence[MeasuredCase]) -> str:
    statuses = Counter(item.status for item in items)
    levels = sorted({interval.level for item in items if (interval := item.interval) is not None})
    states = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    text = f"{counted(len(items), 'case')}: {states}"
    repeats = sorted({len(item.times_ns) for item in items if item.times_ns})
    if repeats:
        text += f"; processes per case: {' or '.join(map(str, repeats))}"
    if levels:
        text += f"; ranges hold the median with {' or '.join(f'{100 * level:.0f} %' for level in levels)} confidence"
    return text


def _generation(items: Sequence[MeasuredCase], gpu: bool) -> Iterator[Section]:
    done = [item for item in items if item.times_ns]
    if not done:
        return
    names = _varied(items)
    ordered = sorted(done, key=lambda item: (item.settings.get(_BATCH, 0), item.median_ns or 0, item.case))
    memory = dict.fromkeys(figures.peak_memory_of for item in done for figures in item.generation)
    notes = tuple(f"peak memory: {text}" for text in memory if text)

    def table(*fields: Field) -> Table:
        return table_of(ordered, ("case", "text", lambda item: short(item, names)), *fields, missing="-")

    speeds = table(
        ("tokens/s", "speed", "tokens_per_s"),
        ("range", "speed", lambda item: item.interval and (1e9 / item.interval.high, 1e9 / item.interval.low)),
        _median("time of a pass", "ns", "wall_ns"), _median("peak memory", "bytes", "peak_memory_bytes"),
        _median("KV cache", "bytes", "kv_cache_bytes"), ("valid", "count", _valid),
    )  # fmt: skip
    yield Section("Whole generation", notes, speeds)
    starts = table(
        _median("loading", "ns", "load_ns"), _median("first pass, extra", "ns", "first_pass_extra_ns"),
        _median("compiling in it", "ns", "compile_ns"), _median("frames compiled", "count", "first_compiles"),
        ("recompiled later", "count", "recompiles"), _median("graph breaks", "count", "graph_breaks"),
    )  # fmt: skip
    note = "first pass, extra: first pass minus a timed pass; recompiled later: frames compiled in timed passes"
    yield Section("Start-up", (note,), starts, detail=True)
    note = "host time; in bookkeeping the host waits for the GPU" if gpu else "host time"
    yield Section("Shares of a pass by phase", (note,), table(*map(_phase, (*_PHASES, "other"))), detail=True)


def _median(title: str, unit: Unit, name: str) -> Field:
    return title, unit, lambda item: item.median(name)


def _valid(item: MeasuredCase) -> str | None:
    valid, of = item.median("valid_molecules"), item.median("molecules")
    return None if valid is None or of is None else f"{valid:.0f}/{of:.0f}"


def _phase(name: str) -> Field:
    """Return the share of a phase; `other`: of those without a column."""

    def share(item: MeasuredCase) -> float | None:
        shares = item.phase_ratios()
        return shares.get(name) if name in _PHASES else sum(shares[name] for name in shares if name not in _PHASES)

    return name, "ratio", share


def _sdpa(items: Sequence[MeasuredCase]) -> Section:
    """Return the backends of one kernel, fastest first."""
    math_ns = next((item.median_ns for item in items if item.settings.get("backend") == "math"), None)
    table = table_of(
        sorted(items, key=lambda item: item.median_ns or 0),
        ("backend", "text", _backend), ("time", "ns", "median_ns"),
        ("range", "ns", lambda item: item.interval and (item.interval.low, item.interval.high)),
        ("TFLOP/s", "speed", _tflops), ("GB/s", "speed", _gb_per_s),
        ("speed over math", "factor", lambda item: per(math_ns, item.median_ns)),
        _median("first call", "ns", "first_call_ns"), _median("largest error", "number", "largest_error"),
        missing="-",
    )  # fmt: skip
    first = items[0].settings
    shape = "x".join(str(first.get(name)) for name in ("batch", "heads", "kv_heads", "keys", "head_dim"))
    phase = "decode step" if first.get("queries") == 1 else "prefill"
    title = f"Attention kernel, {phase}, {shape}, mask {first.get('mask')}, {first.get('dtype')}"
    return Section(title, table=table)


def _not_ok(items: Sequence[MeasuredCase]) -> list[Section]:
    bad = [item for item in items if item.status != OK]
    if not bad:
        return []
    names = {kind: _varied([item for item in items if item.kind == kind]) for kind in {item.kind for item in items}}
    why: dict[tuple[str, str], list[str]] = {}
    for item in bad:
        message = short_message(item.message)
        if item.largest_batch is not None:
            message += f"; {'the' if item.fit_exact else 'a'} largest batch that fits: {item.largest_batch}"
        why.setdefault((item.status, message), []).append(short(item, names[item.kind]))
    notes = tuple(f"{status}: {message}: {'; '.join(cases)}" for (status, message), cases in sorted(why.items()))
    return [Section("Cases without results", notes=notes)]


def _backend(item: MeasuredCase) -> str:
    chosen = next((figures.chosen for figures in item.sdpa if figures.chosen), None)
    return f"{item.settings.get('backend')}{f' ({chosen})' if chosen else ''}"


def _tflops(item: MeasuredCase) -> float | None:
    return item.sdpa[0].flops / item.median_ns / 1e3 if item.sdpa and item.median_ns else None


def _gb_per_s(item: MeasuredCase) -> float | None:
    return item.sdpa[0].bytes / item.median_ns if item.sdpa and item.median_ns else None


_RESULT: tuple[Name, ...] = (
    "status", "message", "largest_batch", ("repeats", lambda item: len(item.times_ns or item.masks)),
    ("time_ns", "median_ns"), ("low_ns", "interval.low"), ("high_ns", "interval.high"), ("level", "interval.level"),
    "tokens_per_s", *map(_of_median, ("wall_ns", "first_pass_extra_ns", "compile_ns")), "recompiles",
    ("doubts", lambda item: "; ".join(item.doubts) if item.machines else None), *map(_of_median, _MEDIANS),
    ("phases", lambda item: item.phase_ratios() if item.generation else None), ("tflops", _tflops),
    ("gb_per_s", _gb_per_s), "stack",
)  # fmt: skip
