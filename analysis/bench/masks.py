"""Masks of engines along instances of JSON schemas: times merged over processes, grouped by token, with their tails."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from molprof.analysis.bench.summary import MeasuredCase
from molprof.common.bench_records import MaskedBatch, MaskedInstance, MaskedSchema
from molprof.common.process import OK
from molprof.common.values import percentile

# Beginnings of the groups of positions, and masks of an instance from which on its growth is shown.
_POSITIONS = (0, 16, 64, 256, 1024)
_LEAST_GROWN = 128
_SLOWEST = 10


@dataclass(frozen=True)
class Mask:
    """Times of a mask, and of the step past the token that was chosen; each is the median over processes."""

    schema: str
    instance: str
    position: int
    state: str
    keyword: str
    mask_ns: float
    accept_ns: float | None  # None: the end, or a token that was forbidden
    apply_ns: float | None  # None: not recorded

    @property
    def total_ns(self) -> float:
        """The whole time of a mask: accept, fill and apply, ns."""
        return self.mask_ns + (self.accept_ns or 0.0) + (self.apply_ns or 0.0)


@dataclass(frozen=True)
class Tail:
    """Percentiles of the times of masks or steps; each is a time that occurred, None of too few times."""

    count: int
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    largest_ns: float
    mean_ns: float


@dataclass(frozen=True)
class StepCost:
    """Times of one step of a batch with an engine."""

    engine: str
    device: str  # of the scores
    rows: int
    threads: int | None  # that fill; None: as the package does
    accept: Tail | None  # None: one kernel does all of it, which is `apply`; or not recorded
    fill: Tail | None
    apply: Tail | None
    total: Tail

    @property
    def row_ns(self) -> float:
        """Mean time per row."""
        return self.total.mean_ns / self.rows


@dataclass(frozen=True)
class EngineMasks:
    """All schemas of one tokenizer with one engine, or with two engines whose masks are compared."""

    engine: str
    other: str | None
    tokenizer: str
    version: str
    schemas: tuple[MaskedSchema, ...]
    vocabulary_ns: float | None = None  # to make what is the same for every constraint; None: nothing, or not recorded

    @property
    def instances(self) -> list[tuple[MaskedSchema, MaskedInstance]]:
        """Each instance with its schema."""
        return [(schema, instance) for schema in self.schemas for instance in schema.instances]

    def masks(self) -> list[Mask]:
        """Return the mask of each step of all instances."""
        masks = []
        for schema, one in self.instances:
            labels = (itertools.chain.from_iterable([name] * count for name, count in runs)
                      for runs in (one.states, one.keywords))  # fmt: skip
            times = itertools.zip_longest(one.mask_ns, one.accept_ns, one.apply_ns)
            masks += [
                Mask(schema.name, one.description, index, *words, *ns)
                for index, (ns, *words) in enumerate(zip(times, *labels, strict=True))
            ]
        return masks

    def wrong(self, valid: bool) -> list[tuple[MaskedSchema, MaskedInstance]]:
        """Return the instances that the engine accepts and the validator does not, or the reverse."""
        return [(schema, one) for schema, one in self.instances if one.valid is valid is not one.accepted]


def engine_masks(measured: Sequence[MeasuredCase]) -> list[EngineMasks]:
    """Return the figures of mask cases in the order of tokenizers and engines. Cases without results are left out."""
    groups: dict[tuple[str, str, str | None], list[MeasuredCase]] = {}
    for item in measured:
        if item.masks:
            names = (str(item.settings.get(name)) for name in ("tokenizer", "engine"))
            groups.setdefault((*names, item.settings.get("other")), []).append(item)  # type: ignore[arg-type]
    return [
        EngineMasks(
            engine,
            other,
            tokenizer,
            items[0].masks[0].version,
            tuple(itertools.chain(*map(_schemas, items))),
            _median([figures.vocabulary_ns for item in items for figures in item.masks]),
        )
        for (tokenizer, engine, other), items in sorted(groups.items(), key=lambda group: str(group[0]))
    ]


def _median(values: Sequence[float | None]) -> float | None:
    recorded = [value for value in values if value is not None]
    return statistics.median(recorded) if recorded else None


def _schemas(item: MeasuredCase) -> Iterator[MaskedSchema]:
    """Yield the schemas of a case, merged over processes; a process that failed marks the whole schema as failed."""
    for runs in zip(*(figures.schemas for figures in item.masks), strict=True):
        bad = next((run for run in runs if run.status != OK), None)
        if bad is not None:
            yield bad
            continue
        whole: dict[str, Any] = {
            name: None if None in values else round(statistics.median(values))
            for name in (
                *("compile_ns", "first_mask_ns", "memory_bytes"),
                *("second_alone_ns", "second_after_ns", "again_ns"),
            )
            for values in [[getattr(run, name) for run in runs]]
        }
        whole["instances"] = list(map(_instance, *(run.instances for run in runs)))
        whole["batches"] = list(map(_batch, *(run.batches for run in runs)))
        yield replace(runs[0], **whole)


def _instance(*runs: MaskedInstance) -> MaskedInstance:
    first = runs[0]
    times: dict[str, Any] = {
        name: [round(value) for value in np.median([getattr(run, name) for run in runs], axis=0)]
        for name in ("mask_ns", "accept_ns", "apply_ns")
        if all(len(getattr(run, name)) == len(getattr(first, name)) for run in runs)
    }
    return replace(first, **times)


def _batch(*runs: MaskedBatch) -> MaskedBatch:
    times: dict[str, Any] = {
        name: [round(value) for value in np.median([getattr(run, name) for run in runs], axis=0)]
        for name in ("accept_ns", "fill_ns", "apply_ns")
        if len({len(getattr(run, name)) for run in runs}) == 1 and getattr(runs[0], name)
    }
    return replace(runs[0], **times)


def common_steps(items: Sequence[EngineMasks]) -> set[tuple[str, str]]:
    """Return the schemas and instances whose steps all engines with batches have measured: the same tokens."""
    each = [{(schema.name, batch.instance) for schema in item.schemas for batch in schema.batches} for item in items]
    return set.intersection(*filter(None, each)) if any(each) else set()


def step_costs(items: Sequence[EngineMasks]) -> list[StepCost]:
    """Return the cost of a step with each engine, lowest total first, over instances that all engines measured."""
    common = common_steps(items)
    # Those that took too long made fewer steps: of the others the first ones count.
    least: dict[tuple[Any, ...], int] = {}
    for item in items:
        for schema in item.schemas:
            for batch in schema.batches:
                key = (schema.name, batch.instance, batch.device, batch.rows)
                least[key] = min(least.get(key, len(batch.total_ns)), len(batch.total_ns))
    costs = []
    for item in items:
        groups: dict[tuple[str, int, int | None], list[tuple[MaskedBatch, int]]] = {}
        for schema in item.schemas:
            for batch in schema.batches:
                if (schema.name, batch.instance) in common:
                    steps = least[schema.name, batch.instance, batch.device, batch.rows]
                    groups.setdefault((batch.device, batch.rows, batch.threads), []).append((batch, steps))
        for (device, rows, threads), batches in groups.items():
            accept, fill, apply, total = (
                tail([ns for batch, steps in batches for ns in getattr(batch, name)[:steps]])
                for name in ("accept_ns", "fill_ns", "apply_ns", "total_ns")
            )
            if total is not None:
                costs.append(StepCost(item.engine, device, rows, threads, accept, fill, apply, total))
    return sorted(costs, key=lambda cost: (cost.device, cost.rows, cost.total.mean_ns))


def slowest(masks: Sequence[Mask]) -> list[Mask]:
    """Return the slowest masks, the slowest first."""
    return sorted(masks, key=lambda mask: -mask.total_ns)[:_SLOWEST]


def tail(values: Sequence[float]) -> Tail | None:
    """Return the percentiles, the largest and the mean of times; None without any."""
    if not values:
        return None
    ascending = sorted(values)
    p50_ns, p90_ns, p99_ns = (percentile(ascending, percent) for percent in (50, 90, 99))
    return Tail(len(ascending), p50_ns, p90_ns, p99_ns, ascending[-1], statistics.fmean(ascending))


def grouped(masks: Sequence[Mask]) -> Iterator[tuple[str, str, Tail]]:
    """Yield the times of mask and step by state, position and keyword of the schema, for each group that occurs."""
    ways: dict[str, Callable[[Mask], tuple[int, str]]] = {
        "state": lambda mask: (0, mask.state), "position": _position, "keyword": lambda mask: (0, mask.keyword)
    }  # fmt: skip
    for name, key in ways.items():
        groups: dict[tuple[int, str], list[float]] = {}
        for mask in masks:
            groups.setdefault(key(mask), []).append(mask.total_ns)
        for group, values in sorted(groups.items()):
            times = tail(values)
            assert times is not None
            yield name, group[1], times


def _position(mask: Mask) -> tuple[int, str]:
    begin = max(first for first in _POSITIONS if first <= mask.position)
    return begin, f"from {begin:,}"


@dataclass(frozen=True)
class Growth:
    """Median times of mask and step in the first and in the last quarter of a long instance."""

    schema: str
    instance: str
    masks: int
    first_ns: float
    last_ns: float


def growth(masks: Sequence[Mask]) -> Iterator[Growth]:
    """Yield how the time of masks grows along each instance."""
    for (schema, instance), run in itertools.groupby(masks, key=lambda mask: (mask.schema, mask.instance)):
        times = [mask.total_ns for mask in run]
        quarter = len(times) // 4
        if len(times) >= _LEAST_GROWN:
            yield Growth(schema, instance, len(times), *map(statistics.median, (times[:quarter], times[-quarter:])))
