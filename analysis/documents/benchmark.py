"""Results as a document: one table of speed, one of phases, one of what did not run, for each environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from molprof.analysis.bench.results import OK, Results
from molprof.analysis.bench.summary import GENERATE, SDPA, Measured, environment_text, short_message, summed, varying
from molprof.common.document import Column, Document, Section
from molprof.common.phases import STEP_PHASES
from molprof.common.values import (
    bytes_text,
    count_text,
    percent_text,
    ratio_text,
    speed_text,
    time_text,
)

_BATCH = "batch_size"
_PHASES = ("prefill", *STEP_PHASES)
_NONE = "-"
# What a setting is called where its value alone does not say it.
_NAMES: dict[str, Callable[[Any], str]] = {
    "processor": lambda value: "no LP" if value is None else str(value),
    "batch_size": lambda value: f"b{value}",
    "batch": lambda value: f"b{value}",
    "compile": lambda value: f"compile {value}",
    "tf32": lambda value: "tf32" if value else "no tf32",
    "cudnn_benchmark": lambda value: "cudnn bench" if value else "no cudnn bench",
    "padding_multiple": lambda value: f"pad {value}",
    "count": lambda value: f"n{value}",
    "heads": lambda value: f"h{value}",
    "kv_heads": lambda value: f"kv{value}",
    "head_dim": lambda value: f"d{value}",
    "queries": lambda value: f"q{value}",
    "keys": lambda value: f"k{value}",
}


def bench_document(results: Results, title: str) -> Document:
    """Everything that the file holds.

    Raises:
        TraceError: the figures of a result are not what they should be.
    """
    measured = summed(results)
    sections = [Section("", notes=results.notes)] if results.notes else []
    for name in dict.fromkeys(item.environment for item in measured):
        mine = [item for item in measured if item.environment == name]
        where = environment_text(results.environments.get(name))
        sections.append(Section(f"Environment {name}", notes=(where, _counts(mine), *_busy(results, name))))
        gpu = results.environments.get(name, {}).get("gpu") is not None
        sections += _generation([item for item in mine if item.kind == GENERATE], gpu)
        sections += _sdpa([item for item in mine if item.kind == SDPA])
        sections += _not_ok(mine)
    return Document(title, tuple(sections))


def bench_rows(results: Results) -> list[dict[str, Any]]:
    """A row per case and environment: settings, status and medians, for JSON and CSV. None: not recorded."""
    rows = []
    for item in summed(results):
        interval = item.interval
        rows.append(
            {
                "environment": item.environment,
                "case": item.case,
                "label": item.label,
                **item.settings,
                "status": item.status,
                "message": item.message,
                "largest_batch": item.largest_batch,
                "repeats": len(item.times_ns),
                "time_ns": item.median_ns,
                "low_ns": None if interval is None else interval.low,
                "high_ns": None if interval is None else interval.high,
                "level": None if interval is None else interval.level,
                "tokens_per_s": item.tokens_per_s,
                "wall_ns": item.wall_ns(),
                "first_pass_extra_ns": item.first_extra_ns(),
                "compile_ns": item.compile_ns(),
                "recompiles": item.recompiles() if item.generation else None,
                "peak_memory_bytes": item.median("peak_memory_bytes") if item.times_ns else None,
                "kv_cache_bytes": item.median("kv_cache_bytes") if item.generation else None,
                "tokens": item.median("tokens") if item.generation else None,
                "valid_molecules": item.median("valid_molecules") if item.generation else None,
                "molecules": item.median("molecules") if item.generation else None,
                "phases": item.phase_ratios() if item.generation else None,
                "tflops": _tflops(item),
                "gb_per_s": _gb_per_s(item),
                "stack": item.stack,
            }
        )
    return rows


def short(item: Measured, names: Sequence[str]) -> str:
    """A case by the settings that tell it from the others."""
    parts = [_NAMES.get(name, str)(item.settings.get(name)) for name in names]
    return " ".join(parts) or item.label


def _busy(results: Results, environment: str) -> tuple[str, ...]:
    """A caution where others had the machine too; the cases themselves are one process at a time."""
    loads = [item.load for item in results.results if item.environment == environment and item.load is not None]
    cores = results.environments.get(environment, {}).get("cores")
    if not loads or not isinstance(cores, int) or max(loads) <= cores + 1:
        return ()
    return (f"the machine was busy: load up to {max(loads):.0f} on {cores} cores, so times and ranges say little",)


def _telling(items: Sequence[Measured]) -> list[str]:
    """The settings in which cases of a kind differ; how many prompts, only where the batch does not tell it."""
    names = varying(items)
    return [name for name in names if name != "count" or _BATCH not in names]


def _counts(items: Sequence[Measured]) -> str:
    found = Counter(item.status for item in items)
    levels = sorted({interval.level for item in items if (interval := item.interval) is not None})
    text = f"{len(items)} cases: " + ", ".join(f"{count} {status}" for status, count in found.most_common())
    repeats = sorted({len(item.times_ns) for item in items if item.times_ns})
    if repeats:
        text += f"; processes per case: {' or '.join(map(str, repeats))}"
    if levels:
        text += f"; ranges hold the median with {' or '.join(f'{100 * level:.0f} %' for level in levels)} confidence"
    return text


def _generation(items: Sequence[Measured], gpu: bool) -> list[Section]:
    done = [item for item in items if item.times_ns]
    if not done:
        return []
    names = _telling(items)
    ordered = sorted(done, key=lambda item: (item.settings.get(_BATCH, 0), item.median_ns or 0, item.case))
    columns = (
        Column("case", "left"),
        Column("tokens/s"),
        Column("range"),
        Column("time of a pass"),
        Column("peak memory"),
        Column("KV cache"),
        Column("valid"),
    )
    rows = tuple(
        (
            short(item, names),
            speed_text(item.tokens_per_s),
            _speed_range(item),
            time_text(item.wall_ns()),
            _or_none(item.median("peak_memory_bytes"), bytes_text),
            _or_none(item.median("kv_cache_bytes"), bytes_text),
            _valid(item),
        )
        for item in ordered
    )
    memory = dict.fromkeys(figures.peak_memory_of for item in done for figures in item.generation)
    notes = tuple(f"peak memory: {text}" for text in memory if text)
    phase_rows = tuple(
        (short(item, names), *(percent_text(shares[name]) if name in shares else _NONE for name in _PHASES),
         percent_text(sum(value for name, value in shares.items() if name not in _PHASES)))
        for item in ordered
        for shares in [item.phase_ratios()]
    )  # fmt: skip
    phase_columns = (Column("case", "left"), *map(Column, _PHASES), Column("other"))
    before_columns = (
        Column("case", "left"),
        Column("loading"),
        Column("first pass, more than a timed one"),
        Column("of it compiling"),
        Column("frames compiled"),
        Column("compiled again in timed passes"),
        Column("graph breaks"),
    )
    before_rows = tuple(
        (
            short(item, names),
            _or_none(item.median("load_ns"), time_text),
            _or_none(item.first_extra_ns(), time_text),
            _or_none(item.compile_ns(), time_text),
            _or_none(item.first_compiles(), count_text),
            _or_none(item.recompiles(), count_text),
            _or_none(item.median("graph_breaks"), count_text),
        )
        for item in ordered
    )
    return [
        Section("Whole generation", columns, rows, notes),
        Section("Before the steady state", before_columns, before_rows, detail=True),
        Section(
            "Shares of a pass by phase", phase_columns, phase_rows,
            ("host time; in `bookkeeping` the host waits for the GPU" if gpu else "host time",), detail=True,
        ),
    ]  # fmt: skip


def _sdpa(items: Sequence[Measured]) -> list[Section]:
    done = [item for item in items if item.times_ns]
    if not done:
        return []
    sections = []
    columns = (
        Column("backend", "left"),
        Column("time"),
        Column("range"),
        Column("TFLOP/s"),
        Column("GB/s"),
        Column("speed over math"),
        Column("first call"),
        Column("largest error"),
    )
    keys = dict.fromkeys(sdpa_key(item) for item in done)
    for key in keys:
        mine = sorted((item for item in done if sdpa_key(item) == key), key=lambda item: item.median_ns or 0)
        math_ns = next((item.median_ns for item in mine if item.settings.get("backend") == "math"), None)
        rows = tuple(
            (
                _backend(item),
                time_text(item.median_ns),
                _time_range(item),
                speed_text(_tflops(item)),
                speed_text(_gb_per_s(item)),
                ratio_text(math_ns / item.median_ns) if math_ns and item.median_ns else _NONE,
                time_text(item.median("first_call_ns")),
                _or_none(item.median("largest_error"), lambda value: f"{value:.1e}"),
            )
            for item in mine
        )
        first = mine[0].settings
        shape = "x".join(str(first.get(name)) for name in ("batch", "heads", "kv_heads", "keys", "head_dim"))
        phase = "decode step" if first.get("queries") == 1 else "prefill"
        title = f"Attention kernel, {phase}, {shape}, mask {first.get('mask')}, {first.get('dtype')}"
        sections.append(Section(title, columns, rows))
    return sections


def sdpa_key(item: Measured) -> tuple[Any, ...]:
    """What cases of one table share: all settings but the backend."""
    return tuple((name, repr(value)) for name, value in item.settings.items() if name != "backend")


def _not_ok(items: Sequence[Measured]) -> list[Section]:
    bad = [item for item in items if item.status != OK]
    if not bad:
        return []
    names = {kind: _telling([item for item in items if item.kind == kind]) for kind in {item.kind for item in items}}
    why: dict[tuple[str, str], list[str]] = {}
    for item in bad:
        message = short_message(item.message)
        if item.largest_batch is not None:
            message += f"; {'the' if item.fit_exact else 'a'} largest batch that fits: {item.largest_batch}"
        why.setdefault((item.status, message), []).append(short(item, names[item.kind]))
    notes = tuple(f"{status}: {message}: {'; '.join(cases)}" for (status, message), cases in sorted(why.items()))
    return [Section("Not ok", notes=notes)]


def _backend(item: Measured) -> str:
    chosen = next((figures.chosen for figures in item.sdpa if figures.chosen), None)
    return f"{item.settings.get('backend')}{f' ({chosen})' if chosen else ''}"


def _tflops(item: Measured) -> float | None:
    return item.sdpa[0].flops / item.median_ns / 1e3 if item.sdpa and item.median_ns else None


def _gb_per_s(item: Measured) -> float | None:
    return item.sdpa[0].bytes / item.median_ns if item.sdpa and item.median_ns else None


def _speed_range(item: Measured) -> str:
    interval = item.interval
    if interval is None:
        return _NONE
    return f"{speed_text(1e9 / interval.high)} to {speed_text(1e9 / interval.low)}"


def _time_range(item: Measured) -> str:
    interval = item.interval
    return _NONE if interval is None else f"{time_text(interval.low)} to {time_text(interval.high)}"


def _valid(item: Measured) -> str:
    valid, of = item.median("valid_molecules"), item.median("molecules")
    return _NONE if valid is None or of is None else f"{valid:.0f}/{of:.0f}"


def _or_none(value: float | None, text: Callable[[float | None], str]) -> str:
    return _NONE if value is None else text(value)
