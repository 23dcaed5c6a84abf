"""Masks of engines along instances of JSON schemas, as sections: engines, times and their tails, correctness."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from molprof.analysis.bench.masks import (
    EngineMasks,
    Mask,
    StepCost,
    Tail,
    common_steps,
    engine_masks,
    grouped,
    growth,
    slowest,
    step_costs,
    tail,
)
from molprof.analysis.bench.summary import MeasuredCase, short_message
from molprof.common.document import Document, Field, Name, Section, named, table_of
from molprof.common.process import OK
from molprof.common.values import per, time_text

_NAMED = 10
# Of the tokens of structural tags.
_STATES = ("no tag open", "tag", "in a tag")
_VERDICTS = ("another cut", "right", "wrong", "not shown")
_TAIL: tuple[Field, ...] = (
    ("p50", "ns", "2.p50_ns"), ("p90", "ns", "2.p90_ns"), ("p99", "ns", "2.p99_ns"), ("largest", "ns", "2.largest_ns"),
    ("mean", "ns", "2.mean_ns"),
)  # fmt: skip
# What is timed of a token, in the order of a step.
_STEPS = {"accept": "accept_ns", "mask": "mask_ns", "apply": "apply_ns", "total": "total_ns"}
# In JSON: of each engine, of an instance that it judges wrongly, of two that are compared.
_NAMES: tuple[Name, ...] = (
    "tokenizer", "engine", "other", "version", "vocabulary_ns", ("schemas", lambda item: len(item.schemas)),
    ("status", lambda item: Counter(schema.status for schema in item.schemas)),
)  # fmt: skip
_COST = ("device", "rows", "threads", "accept", "fill", "apply", "total", "row_ns")
_SET = ("name", "tools", "compile_ns", "first_mask_ns", "second_alone_ns", "second_after_ns", "again_ns")
_WRONG = (("instance", "description"), "stopped_at", "error")
_DIFFER: tuple[Name, ...] = (
    ("prefixes", lambda item: _sum(item, "prefixes")), ("differing", lambda item: _sum(item, "differing")),
    ("differences", lambda item: [one for schema in item.schemas for one in schema.differences]),
)  # fmt: skip


def masks_sections(measured: Sequence[MeasuredCase]) -> Iterator[Section]:
    """Yield the sections of all mask cases in an environment, those that have rows."""
    return (section for section in _sections(engine_masks(measured)) if section.table and section.table.rows)


def _sections(engines: Sequence[EngineMasks]) -> Iterator[Section]:
    for name in dict.fromkeys(item.tokenizer for item in engines):
        mine = [item for item in engines if item.tokenizer == name]
        timed = [(item, item.masks()) for item in mine if item.other is None]
        if timed:
            yield from _timed(name, timed)
        if pairs := [item for item in mine if item.other is not None]:
            yield from _compared(name, pairs)
        yield _without(mine)


def masks_ranking(measured: Sequence[MeasuredCase]) -> Document:
    """Return the costs of a step under one constraint with each engine, and the recommended engine."""
    engines = engine_masks(measured)
    names = dict.fromkeys(item.tokenizer for item in engines)
    mine = {name: [item for item in engines if item.tokenizer == name] for name in names}
    sections = [section for name in names for section in _costs(name, mine[name])]
    summary = tuple(line for name in names for line in _decision(name, mine[name]))
    return Document("Ranking of constraints", tuple(sections), lambda: masks_data(measured), summary=summary)


def _decision(name: str, items: Sequence[EngineMasks]) -> Iterator[str]:
    """Yield a sentence for each device on the engine with the lowest cost, over batches of all sizes."""
    costs = [cost for cost in step_costs(items) if cost.threads is None]
    wrong = {item.engine: len(item.wrong(True)) for item in items}
    least = min(wrong.values(), default=0)
    for device in dict.fromkeys(cost.device for cost in costs):
        times: dict[str, list[StepCost]] = {}
        for cost in costs:
            if cost.device == device and wrong[cost.engine] == least:
                times.setdefault(cost.engine, []).append(cost)
        order = sorted(times, key=lambda engine: statistics.geometric_mean(one.total.mean_ns for one in times[engine]))
        ranked = [
            f"{engine}: {', '.join(f'{time_text(one.total.mean_ns)} of {one.rows}' for one in times[engine])}"
            for engine in order
        ]
        where = name if device == "cpu" else f"{name}, scores on {device}"
        text = f"Take {ranked[0]} rows per step ({where})" if ranked else f"No engine keeps to this alone ({where})"
        if ranked[1:]:
            text += f"; next {ranked[1]}"
        if left := [f"{engine} ({count} more)" for engine, count in wrong.items() if count > least]:
            text += f"; left out, as they forbid valid texts: {', '.join(left)}"
        yield f"{text}."


def masks_data(measured: Sequence[MeasuredCase]) -> list[dict[str, Any]]:
    """Return a row for each tokenizer and engine, in nanoseconds; of engines that were compared only the counts."""
    return [named(item, *_NAMES) | (_times(item) if item.other is None else named(item, *_DIFFER))
            for item in engine_masks(measured)]  # fmt: skip


def _times(item: EngineMasks) -> dict[str, Any]:
    masks = item.masks()
    wrong = {
        f"wrongly_{word}": [{"schema": schema.name, **named(one, *_WRONG)} for schema, one in item.wrong(valid)]
        for word, valid in (("refused", True), ("accepted", False))
    }
    sets = [named(schema, *_SET) for schema in item.schemas if schema.tools]
    return {
        **dict(_each(masks)),
        "groups": [dict(zip(("by", "group", "time"), one, strict=True)) for one in grouped(masks)],
        "batches": [named(cost, *_COST) for cost in step_costs([item])],
        **({"tools": sets} if sets else {}),
        "growth": list(growth(masks)), "slowest": slowest(masks), **wrong,
    }  # fmt: skip


def masks_records(measured: Sequence[MeasuredCase]) -> list[dict[str, Any]]:
    """Return a row for each step and each group of tokens, in nanoseconds."""
    rows = []
    for item in engine_masks(measured):
        masks = item.masks()
        steps = [("step", step, spread) for step, spread in _each(masks)]
        head = {"tokenizer": item.tokenizer, "engine": item.engine}
        rows += [
            {**head, "by": by, "group": group, **vars(times)}
            for by, group, times in (*steps, *grouped(masks))
            if times is not None
        ]
    return rows


def _each(masks: Sequence[Mask]) -> Iterator[tuple[str, Tail | None]]:
    """Yield each timed part of a token with its times."""
    for step, name in _STEPS.items():
        yield step, tail([ns for mask in masks if (ns := getattr(mask, name)) is not None])


def _sum(item: EngineMasks, name: str) -> int:
    return sum(getattr(schema, name) or 0 for schema in item.schemas)


def _timed(name: str, timed: Sequence[tuple[EngineMasks, list[Mask]]]) -> Iterator[Section]:
    timed = sorted(timed, key=lambda pair: statistics.fmean([mask.total_ns for mask in pair[1]] or [math.inf]))
    engines = [item for item, _ in timed]
    yield from _costs(name, engines)

    def first(item: EngineMasks, what: str, percent: str) -> float | None:
        return getattr(
            tail([ns for schema in item.schemas if (ns := getattr(schema, what)) is not None]), percent, None
        )

    def of(item: EngineMasks, valid: bool) -> str:
        return f"{len(item.wrong(valid))} of {sum(one.valid is valid for _, one in item.instances)}"

    def forced(item: EngineMasks, what: str) -> float | None:
        return per(
            sum(getattr(one, what) for _, one in item.instances), sum(len(one.mask_ns) for _, one in item.instances)
        )

    yield Section(
        f"Engines and schemas: {name}",
        ("wrongly refused: instances that jsonschema-rs calls valid; wrongly accepted: those that it does not."
         " Neither where only a format is wrong, as engines may ignore formats",
         "vocabulary: made once, whatever the schema; first mask: from the schema on, the vocabulary is made before;"
         " memory: most that a schema took until its first mask"),
        table_of(
            engines, ("engine", "text"), ("version", "text"), ("schemas", "count", lambda item: len(item.schemas)),
            *((state, "count", lambda item, state=state: _states(item)[state]) for state in ("refused", "failed")),
            ("wrongly refused", "text", lambda item: of(item, True)),
            ("wrongly accepted", "text", lambda item: of(item, False)),
            ("vocabulary", "ns", "vocabulary_ns"),
            ("first mask p50", "ns", lambda item: first(item, "first_mask_ns", "p50_ns")),
            ("largest", "ns", lambda item: first(item, "first_mask_ns", "largest_ns")),
            ("memory", "bytes", lambda item: first(item, "memory_bytes", "largest_ns")), missing="-",
        ),
    )  # fmt: skip
    yield _of_tools(name, timed)
    rows = [(item, what, spread) for item, masks in timed for what, spread in _each(masks) if spread is not None]
    left = [(item, count) for item in engines if (count := sum(schema.left_out for schema in item.schemas))]
    said = ", ".join(f"{item.engine} {count} of {count + len(item.instances)}" for item, count in left)
    yield Section(
        f"Time per token: {name}",
        (*([f"texts left out for time (--seconds): {said}"] if left else []),
         "one row. accept: to move past the token before; mask: to fill it; apply: to mask the scores with it",
         "forced: share of masks that allow one token; forced text: masks whose tokens all begin one text"),
        table_of(
            rows, ("engine", "text", "0.engine"), ("step", "text", "1"), ("count", "count", "2.count"), *_TAIL,
            ("forced", "ratio", lambda row: forced(row[0], "forced") if row[1] == "mask" else None),
            ("forced text", "ratio", lambda row: forced(row[0], "forced_text") if row[1] == "mask" else None),
            missing="-",
        ),
    )  # fmt: skip
    groups = [(group, item.engine, times, by) for item, masks in timed for by, group, times in grouped(masks)]
    for by in dict.fromkeys(row[3] for row in groups):
        mine = sorted((row for row in groups if row[3] == by), key=lambda row: -(row[2].p99_ns or row[2].largest_ns))
        if by == "position":
            mine = [row for row in groups if row[3] == by]
        yield Section(
            f"Accept, mask and apply by {by}: {name}",
            table=table_of(
                mine, (by, "text", "0"), ("engine", "text", "1"), ("count", "count", "2.count"), *_TAIL, missing="-"
            ),
            detail=by == "keyword",
        )
    grown = [(item.engine, one) for item, masks in timed for one in growth(masks)]
    yield Section(
        f"Growth with the answer: {name}",
        ("accept, mask and apply, median of the first and of the last quarter of an instance",),
        table_of(
            grown, ("engine", "text", "0"), ("schema", "text", "1.schema"), ("instance", "text", "1.instance"),
            ("masks", "count", "1.masks"), ("first", "ns", "1.first_ns"), ("last", "ns", "1.last_ns"),
            ("last/first", "factor", lambda row: per(row[1].last_ns, row[1].first_ns)),
        ),
    )  # fmt: skip
    slow = [(item.engine, one) for item, masks in timed for one in slowest(masks)]
    names = ("schema", "instance", "state", "keyword")
    yield Section(
        f"Slowest tokens: {name}",
        table=table_of(
            slow, ("engine", "text", "0"), *((title, "text", f"1.{title}") for title in names),
            ("position", "count", "1.position"), ("mask", "ns", "1.mask_ns"), ("accept", "ns", "1.accept_ns"),
            ("apply", "ns", "1.apply_ns"), missing="-",
        ),
        detail=True,
    )  # fmt: skip
    wrong = [
        (item.engine, schema.name, one)
        for item in engines
        for valid in (True, False)
        for schema, one in item.wrong(valid)
    ]
    yield Section(
        f"Wrongly refused or accepted: {name}", ("a bar stands before the token that was refused",),
        table_of(
            wrong, ("engine", "text", "0"), ("schema", "text", "1"), ("instance", "text", "2.description"),
            ("engine says", "text", lambda row: "valid" if row[2].accepted else "not valid"),
            ("where", "text", lambda row: row[2].error or row[2].stopped_at), missing="-",
        ),
        detail=True,
    )  # fmt: skip


def _of_tools(name: str, timed: Sequence[tuple[EngineMasks, list[Mask]]]) -> Section:
    """Return the section on sets of tools: compiling each, its tokens by state, and a second set after the first."""
    rows: list[tuple[Any, ...]] = []  # schema, engine, and time by state, ns
    for item, masks in timed:
        for schema in item.schemas:
            if schema.tools is not None and schema.status == OK:
                states = [(mask.state, mask.total_ns) for mask in masks if mask.schema == schema.name]
                rows.append((schema, item.engine, *(_median_of(states, state) for state in _STATES)))
    rows.sort(key=lambda row: (row[0].tools, row[0].name))
    cannot = {
        f"{item.engine} has no masks of {schema.name}: {short_message(schema.message)}": None
        for item, _ in timed
        for schema in item.schemas
        if schema.status != OK
    }
    notes = (
        "no tag open, tag, in a tag: accept, mask and apply of a token, p50, by where it stands; no tag open is what"
        " waiting for a trigger costs",
        "second: the same set with one argument more, to its first mask, where the package keeps what it compiled:"
        " alone, after the first set, and once more; -: it keeps nothing of one grammar for another",
        *cannot,
    )
    return Section(
        f"Sets of tools: {name}", notes if rows else (),
        table_of(
            rows, ("constraint", "text", "0.name"), ("engine", "text", "1"), ("compile", "ns", "0.compile_ns"),
            ("first mask", "ns", "0.first_mask_ns"), ("memory", "bytes", "0.memory_bytes"),
            *((state, "ns", str(number)) for number, state in enumerate(_STATES, 2)),
            ("second alone", "ns", "0.second_alone_ns"), ("after the first", "ns", "0.second_after_ns"),
            ("once more", "ns", "0.again_ns"), missing="-",
        ),
    )  # fmt: skip


def _median_of(states: Sequence[tuple[str, float]], state: str) -> float | None:
    times = [ns for name, ns in states if name == state]
    return statistics.median(times) if times else None


def _costs(name: str, engines: Sequence[EngineMasks]) -> Iterator[Section]:
    """Yield the section of what masks cost per step of a batch: constraint engines by total time."""
    costs = step_costs(engines)
    if not costs:
        return
    threads = {cost.threads for cost in costs} != {None}
    several = len({cost.device for cost in costs}) > 1
    common = len(common_steps(engines))
    said = (
        f"over {common} instances, each the longest of its schema, that all of these engines take" if common > 1 else ""
    )
    with_steps = {cost.engine for cost in costs}
    none = [item.engine for item in engines if _states(item)["ok"] and item.engine not in with_steps]
    lacking = f"without steps, as they take no instance whole: {', '.join(none)}"
    optional: list[Field] = []
    if threads:
        optional.append(("threads", "text", lambda cost: str(cost.threads or "default")))
    if several:
        optional.append(("scores on", "text", "device"))
    yield Section(
        f"Masks of a batch: {name}",
        ("means of a step, from the last tokens to the masked scores, with the calls of a capture; by the total",
         *([said] if said else []), *([lacking] if none else [])),
        table_of(
            costs, ("engine", "text"), ("rows", "count"),
            *optional,
            ("steps", "count", "total.count"), ("accept", "ns", "accept.mean_ns"), ("fill", "ns", "fill.mean_ns"),
            ("apply", "ns", "apply.mean_ns"), ("total", "ns", "total.mean_ns"), ("total p99", "ns", "total.p99_ns"),
            ("per row", "ns", "row_ns"), missing="-",
        ),
    )  # fmt: skip


def _states(item: EngineMasks) -> dict[str, int]:
    counts = Counter(schema.status for schema in item.schemas)
    failed = len(item.schemas) - counts["refused"] - counts[OK]
    return {"refused": counts["refused"], "failed": failed, "ok": counts[OK]}


def _compared(name: str, pairs: Sequence[EngineMasks]) -> Iterator[Section]:
    rows = []
    for item in pairs:
        for engine, other in ((item.engine, item.other), (item.other, item.engine)):
            verdicts = Counter(
                one.verdict for schema in item.schemas for one in schema.differences if one.allowed_by == engine
            )
            sums = {
                what: sum(getattr(schema, what).get(engine, 0) for schema in item.schemas)
                for what in ("only", "looked", "unusual")
            }
            rows.append({
                "engine": engine, "forbidden by": other, "prefixes": _sum(item, "prefixes"),
                "differ": _sum(item, "differing"), "tokens": sums["only"],
                **{word: verdicts[word] for word in _VERDICTS},
                "unusual": per(sums["unusual"], sums["looked"]),
            })  # fmt: skip
    yield Section(
        f"Two engines on the same prefixes: {name}",
        ("tokens: those that the engine allows and the other forbids, over all prefixes of valid instances; some of "
         "them are looked into: another cut of the instance, right or wrong by the validator, or not shown",
         "unusual: share of the tokens of small masks that the tokenizer would not write there"),
        table_of(
            rows, ("engine", "text"), ("forbidden by", "text", "forbidden by"), ("prefixes", "count"),
            ("differ", "count"), ("tokens", "count"), *((word, "count", word) for word in _VERDICTS),
            ("unusual", "ratio"), missing="-",
        ),
    )  # fmt: skip
    differences = [
        (schema.name, one)
        for item in pairs
        for schema in item.schemas
        for one in schema.differences
        if one.verdict != "another cut"
    ]
    yield Section(
        f"Tokens that one engine allows: {name}",
        table=table_of(
            sorted(differences, key=lambda row: row[1].verdict == "right"), ("allowed by", "text", "1.allowed_by"),
            ("verdict", "text", "1.verdict"), ("schema", "text", "0"), ("after", "text", "1.prefix"),
            ("token", "text", "1.token"), ("shown by", "text", "1.why"),
        ),
        detail=True,
    )  # fmt: skip


def _without(items: Sequence[EngineMasks]) -> Section:
    why: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        engines = item.engine if item.other is None else f"{item.engine}, {item.other}"
        for schema in item.schemas:
            if schema.status != OK:
                why.setdefault((engines, schema.status, short_message(schema.message)), []).append(schema.name)
    rows = [(*key, len(names), ", ".join(names[:_NAMED])) for key, names in why.items()]
    return Section(
        "Schemas without masks",
        table=table_of(
            rows, ("engine", "text", "0"), ("state", "text", "1"), ("schemas", "count", "3"), ("why", "text", "2"),
            ("such as", "text", "4"),
        ),
        detail=True,
    )  # fmt: skip
