"""The fastest configurations of a benchmark as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from molprof.analysis.bench.recommend import DEFAULTS, Advice, AmdahlBound, Bounds
from molprof.analysis.bench.summary import environment_text, setting_text
from molprof.analysis.compare.statistics import ENOUGH_REPEATS
from molprof.common.bench_records import SCHEMA, Results
from molprof.common.document import Document, Field, Name, Section, named, table_of
from molprof.common.values import Value, counted, factor_text

_ALIKE_SHOWN = 4
# In JSON, besides its fields.
_GAIN: tuple[Name, ...] = (
    ("gain_ratio", lambda item: item.over_default and 1 - item.over_default.value), ("certain", "over_default.certain"),
)  # fmt: skip
_CERTAIN = {None: "too few repeats", True: "yes", False: "no: intervals overlap"}


def advice_document(advice: Sequence[Advice], results: Results, bounds: Bounds | None) -> Document:
    """Return the document of recommendations, by environment."""
    sections = []
    for environment in dict.fromkeys(item.environment for item in advice):
        where = environment_text(results.environments.get(environment))
        sections.append(Section(f"Environment {environment}", notes=(where,)))
        mine = [item for item in advice if item.environment == environment]
        for title in dict.fromkeys(map(_title, mine)):
            sections.append(_fastest(title, [item for item in mine if _title(item) == title], bounds))
    if bounds is not None:
        sections.append(_bounds(bounds))
    rows = [vars(item) | named(item, *_GAIN) for item in advice]
    data = {"schema": SCHEMA, "environments": results.environments, "advice": rows, "bounds": bounds}
    return Document("Fastest valid configurations", tuple(sections), lambda: data)


def _title(item: Advice) -> str:
    shared = item.shared
    processor = "no processor" if shared.get("processor") is None else f"processor {shared['processor']}"
    prompts = shared.get("prompts") or shared.get("smiles")
    return ", ".join(
        [str(shared.get("model")), processor, f"dtype {shared.get('dtype')}", *([str(prompts)] if prompts else [])]
    )


def _fastest(title: str, group: Sequence[Advice], bounds: Bounds | None) -> Section:
    table = table_of(
        group,
        ("batch", "index", "batch_size"), ("fastest", "text", lambda item: settings_text(item.best)),
        ("tokens/s", "speed", "tokens_per_s"), ("default", "speed", "default_tokens_per_s"),
        ("speed", "factor", lambda item: None if item.over_default is None else 1 / item.over_default.value),
        ("certain", "text", _confidence),
        missing="-",
    )  # fmt: skip
    most = max(group, key=lambda item: item.tokens_per_s)
    notes = (f"most tokens/s: batch {most.batch_size}, {settings_text(most.best)}",) if len(group) > 1 else ()
    details = tuple(section for item in group for section in _details(item, bounds))
    return Section(title, notes, table, parts=details)


def _confidence(item: Advice) -> str:
    if settings_text(item.best) == settings_text(DEFAULTS):
        return "the default is fastest" if not item.alike else f"within noise of {counted(len(item.alike), 'other')}"
    if item.over_default is None:
        return "default not measured"
    interval = item.over_default.interval
    if interval is None:
        return "too few repeats"
    text = f"{factor_text(1 / interval.high)} to {factor_text(1 / interval.low)} at {100 * interval.level:.0f} %"
    return text if item.over_default.certain else f"no: {text}"


def _details(item: Advice, bounds: Bounds | None) -> list[Section]:
    notes = []
    if bounds is not None and bounds.settings:
        same_model = item.shared.get("model") == bounds.settings["model"]
        if not same_model or (item.shared.get("processor") is None) != (bounds.settings["processor"] is None):
            notes.append("no bounds: the trace has another model, or differs in the use of a processor")
            bounds = None
    if item.alike:
        shown = "; ".join(settings_text(settings) for settings in item.alike[:_ALIKE_SHOWN])
        more = f"; and {len(item.alike) - _ALIKE_SHOWN} more" if len(item.alike) > _ALIKE_SHOWN else ""
        notes.append(f"within noise of the fastest (intervals overlap, or too few repeats): {shown}{more}")
    if item.alike and any(not (lever.ratio.interval and lever.ratio.interval.reached) for lever in item.levers):
        notes.append(f"95 % confidence requires {ENOUGH_REPEATS} repeats of each: sweep --processes")
    for what, entries in (("rejected: ", item.rejected), ("", item.unmeasured)):
        why: dict[str, list[str]] = {}
        for entry in entries:
            why.setdefault(entry.reason, []).append(settings_text(entry.settings))
        notes += [f"{what}{'; '.join(names)}: {reason}" for reason, names in why.items()]
    if not item.levers and not notes:
        return []
    fields: list[Field] = [
        ("change", "text", lambda lever: _name(lever.name)), ("to", "text", lambda lever: str(lever.value)),
        ("speed", "factor", lambda lever: 1 / lever.ratio.value),
        ("certain", "text", lambda lever: _CERTAIN[lever.ratio.certain]),
    ]  # fmt: skip
    if bounds is not None:
        most = {bound.lever: _most(bound) for bound in bounds.bounds}
        fields.append(("at most, by the trace", "factor", lambda lever: most.get(lever.name)))
    return [Section(f"Batch {item.batch_size}: each change alone", tuple(notes), table_of(item.levers, *fields))]


def _name(setting: str) -> str:
    return setting.replace("_", " ").replace("kv ", "KV ")


def _bounds(bounds: Bounds) -> Section:
    table = table_of(
        bounds.bounds,
        ("change", "text", lambda item: _name(item.lever)), ("speed at most", "factor", _most),
        ("share", "ratio", "gain_ratio"), ("because of", "text", "why"),
    )  # fmt: skip
    of = ", ".join(f"{_name(name)} {value or 'none'}" for name, value in bounds.settings.items())
    notes = (
        f"{bounds.trace}: {of or 'a foreign trace'}",
        "a change that saves a share s of the time gives at most a speed of 1 / (1 - s) (Amdahl)",
    )
    return Section("Bounds from the trace", notes, table)


def _most(bound: AmdahlBound) -> Value:
    if bound.gain_ratio is None:
        return None
    return "any" if bound.gain_ratio >= 1 else 1 / (1 - bound.gain_ratio)


def settings_text(settings: dict[str, Any]) -> str:
    """Return a configuration as text: attention, cache, and all other settings that are not the default."""
    parts = [str(settings["attention"]), f"{settings['kv_cache']} cache"]
    others = {name: value for name, value in settings.items() if name not in ("attention", "kv_cache")}
    parts += [setting_text(name, value) for name, value in others.items() if value != DEFAULTS[name]]
    return ", ".join(parts)
