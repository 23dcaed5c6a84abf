"""Advice as a document and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from molprof.analysis.bench.bounds import Bound, Bounds
from molprof.analysis.bench.recommend import DEFAULTS, Advice, Ratio
from molprof.analysis.bench.summary import environment_text
from molprof.analysis.compare.statistics import ENOUGH_REPEATS
from molprof.common.bench_records import SCHEMA, Results
from molprof.common.document import Column, Document, Section
from molprof.common.values import counted, percent_text, ratio_text, speed_text

_ALIKE_SHOWN = 4


def advice_document(advice: Sequence[Advice], results: Results, bounds: Bounds | None) -> Document:
    """All advice, environment by environment, model by model."""
    sections = []
    for environment in dict.fromkeys(item.environment for item in advice):
        where = environment_text(results.environments.get(environment))
        sections.append(Section(f"Environment {environment}", notes=(where,)))
        mine = [item for item in advice if item.environment == environment]
        for title in dict.fromkeys(map(_title, mine)):
            group = [item for item in mine if _title(item) == title]
            sections.append(_fastest(title, group))
            sections += [section for item in group for section in _details(item, bounds)]
    if bounds is not None:
        sections.append(_bounds(bounds))
    return Document("The fastest valid configurations", tuple(sections))


def advice_json(advice: Sequence[Advice], results: Results, bounds: Bounds | None) -> dict[str, Any]:
    """The same for programs."""
    items = []
    for item in advice:
        raw = asdict(item)
        raw["gain_ratio"] = None if item.over_default is None else 1 - item.over_default.value
        raw["certain"] = None if item.over_default is None else item.over_default.certain
        items.append(raw)
    return {
        "schema": SCHEMA,
        "environments": results.environments,
        "advice": items,
        "bounds": None if bounds is None else asdict(bounds),
    }


def _title(item: Advice) -> str:
    processor = item.shared.get("processor")
    prompts = item.shared.get("prompts") or item.shared.get("smiles")
    return (
        f"{item.shared.get('model')}, {'no LP' if processor is None else f'processor {processor}'}, "
        f"{item.shared.get('dtype')}{f', {prompts}' if prompts else ''}"
    )


def _fastest(title: str, group: Sequence[Advice]) -> Section:
    columns = (
        Column("batch"), Column("fastest", "left"), Column("tokens/s"), Column("default"), Column("speed"),
        Column("sure", "left"),
    )  # fmt: skip
    rows = tuple(
        (
            str(item.batch_size),
            settings_text(item.best),
            speed_text(item.tokens_per_s),
            "-" if item.default_tokens_per_s is None else speed_text(item.default_tokens_per_s),
            "-" if item.over_default is None else _speed(item.over_default),
            _confidence(item),
        )
        for item in group
    )
    notes = []
    if len(group) > 1:
        most = max(group, key=lambda item: item.tokens_per_s)
        notes.append(f"most tokens/s: batch {most.batch_size}, {settings_text(most.best)}")
    return Section(title, columns, rows, tuple(notes))


def _confidence(item: Advice) -> str:
    if settings_text(item.best) == settings_text(DEFAULTS):
        return (
            "the default is fastest" if not item.alike else f"not told apart from {counted(len(item.alike), 'other')}"
        )
    if item.over_default is None:
        return "default not measured"
    interval = item.over_default.interval
    if interval is None:
        return "too few repeats to say"
    text = f"{ratio_text(1 / interval.high)} to {ratio_text(1 / interval.low)} at {100 * interval.level:.0f} %"
    return text if item.over_default.certain else f"no: {text}"


def _details(item: Advice, bounds: Bounds | None) -> list[Section]:
    notes = []
    if bounds is not None and not bounds.same_work(item.shared.get("model"), item.shared.get("processor") is not None):
        notes.append("the trace is of another model, or of a run with another use of a processor: no bounds from it")
        bounds = None
    if item.alike:
        shown = "; ".join(settings_text(settings) for settings in item.alike[:_ALIKE_SHOWN])
        more = f"; and {len(item.alike) - _ALIKE_SHOWN} more" if len(item.alike) > _ALIKE_SHOWN else ""
        notes.append(f"not told apart from the fastest (intervals overlap, or too few repeats): {shown}{more}")
    if item.alike and any(not (lever.ratio.interval and lever.ratio.interval.reached) for lever in item.levers):
        notes.append(f"{ENOUGH_REPEATS} repeats or more of each reach 95 % confidence: bench --repeats")
    why: dict[str, list[str]] = {}
    for entry in item.rejected:
        why.setdefault(entry.reason, []).append(settings_text(entry.settings))
    notes += [f"no candidate: {'; '.join(names)}: {reason}" for reason, names in why.items()]
    columns = (
        Column("single change", "left"), Column("to", "left"), Column("speed"), Column("sure", "left"),
        *([Column("at most, by the trace")] if bounds else []),
    )  # fmt: skip
    rows = []
    for lever in item.levers:
        bound = None if bounds is None else bounds.of(lever.name)
        cells = (lever.name.replace("_", " "), str(lever.value), _speed(lever.ratio), _sure(lever.ratio))
        rows.append((*cells, *([_bound_text(bound)] if bounds else [])))
    if not rows and not notes:
        return []
    return [Section(f"Batch {item.batch_size}: what each change does alone", columns, tuple(rows), tuple(notes))]


def _bounds(bounds: Bounds) -> Section:
    columns = (Column("lever", "left"), Column("speed at most"), Column("share"), Column("because of", "left"))
    rows = tuple(
        (item.lever.replace("_", " "), _bound_text(item), percent_text(item.gain_ratio), item.why)
        for item in bounds.bounds
    )
    of = ", ".join(f"{name.replace('_', ' ')} {value or 'none'}" for name, value in bounds.settings.items())
    notes = (
        f"{bounds.trace}: {of or 'a trace of other origin'}",
        "without a part of share s all is 1 / (1 - s) times as fast (Amdahl)",
    )
    return Section("What the trace bounds", columns, rows, notes)


def _bound_text(bound: Bound | None) -> str:
    if bound is None or bound.gain_ratio is None:
        return "not told"
    return "any" if bound.gain_ratio >= 1 else ratio_text(1 / (1 - bound.gain_ratio))


def _sure(ratio: Ratio) -> str:
    if ratio.certain is None:
        return "too few repeats"
    return "yes" if ratio.certain else "no: the intervals overlap"


def _speed(ratio: Ratio) -> str:
    return ratio_text(1 / ratio.value)


def settings_text(settings: dict[str, Any]) -> str:
    """A configuration by attention, cache and what else is not as it is by default."""
    parts = [str(settings["attention"]), f"{settings['kv_cache']} cache"]
    parts += [f"compile {settings['compile']}"] if settings["compile"] != DEFAULTS["compile"] else []
    parts += ["TF32"] if settings["tf32"] else []
    parts += ["cuDNN benchmark"] if settings["cudnn_benchmark"] else []
    parts += [f"pad {settings['padding_multiple']}"] if settings["padding_multiple"] != 1 else []
    return ", ".join(parts)
