"""Results summed up by case: the repeats of a case in one environment, their median and its interval."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from molprof.analysis.bench.results import (
    OK,
    GenerationFigures,
    Result,
    Results,
    SdpaFigures,
    generation_figures,
    sdpa_figures,
)
from molprof.analysis.compare.statistics import Interval, median_interval

GENERATE, SDPA = "generate", "sdpa"
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
# Of a message in a table or a list; JSON has it whole.
_SHORT_CHARACTERS = 150


@dataclass(frozen=True)
class Measured:
    """A case in one environment.

    Attributes:
        status: ok only where every process of it was; else that of the last one that was not.
        largest_batch: the largest that fits, where it was out of memory and looked for.
        times_ns: one per process that was ok: of whole generation the time per token of its median pass, of an
            attention kernel that of its median call.
        generation, sdpa: the figures of those processes.
    """

    case: str
    label: str
    settings: dict[str, Any]
    environment: str
    status: str
    message: str | None
    stack: tuple[str, ...] | None
    largest_batch: int | None
    fit_exact: bool | None
    times_ns: tuple[float, ...]
    generation: tuple[GenerationFigures, ...]
    sdpa: tuple[SdpaFigures, ...]

    @property
    def kind(self) -> str:
        """`sdpa` or `generate`."""
        return str(self.settings.get("kind"))

    @property
    def median_ns(self) -> float | None:
        """The median of `times_ns`; None where no process was ok."""
        return statistics.median(self.times_ns) if self.times_ns else None

    @property
    def interval(self) -> Interval | None:
        """Of that median; None with too few repeats."""
        return median_interval(self.times_ns)

    @property
    def tokens_per_s(self) -> float | None:
        """Of whole generation."""
        return 1e9 / self.median_ns if self.median_ns and self.kind == GENERATE else None

    def median(self, name: str) -> float | None:
        """The median over processes of a figure that is one number; None where it is not recorded."""
        figures: Sequence[Any] = self.generation or self.sdpa
        values = [value for item in figures if (value := getattr(item, name)) is not None]
        return statistics.median(values) if values else None

    def wall_ns(self) -> float | None:
        """Median over processes of the median pass."""
        return statistics.median(map(_pass_ns, self.generation)) if self.generation else None

    def first_extra_ns(self) -> float | None:
        """What the first warm-up pass took beyond a timed one, compiling and all; median over processes."""
        extra = [item.warmup_ns[0] - _pass_ns(item) for item in self.generation if item.warmup_ns]
        return statistics.median(extra) if extra else None

    def compile_ns(self) -> float | None:
        """In torch.compile before the timed passes; median over processes. None where torch does not tell."""
        sums = [_sum(item.warmup_compile_ns) for item in self.generation]
        known = [value for value in sums if value is not None]
        return statistics.median(known) if known else None

    def first_compiles(self) -> float | None:
        """Frames compiled before the timed passes; median over processes. None where torch does not tell."""
        known = [value for item in self.generation if (value := _sum(item.warmup_compiles)) is not None]
        return statistics.median(known) if known else None

    def recompiles(self) -> int | None:
        """Frames compiled in timed passes, of all processes: each is time that is not steady state."""
        sums = [_sum(item.compiles) for item in self.generation]
        return None if any(value is None for value in sums) else sum(value or 0 for value in sums)

    def phase_ratios(self) -> dict[str, float]:
        """Share of wall time by phase, over all timed passes of all processes."""
        wall = sum(sum(item.wall_ns) for item in self.generation)
        totals: dict[str, int] = {}
        for item in self.generation:
            for phases in item.phases_ns:
                for name, value in phases.items():
                    totals[name] = totals.get(name, 0) + value
        return {name: value / wall for name, value in totals.items()} if wall else {}


def summed(results: Results) -> tuple[Measured, ...]:
    """Every case of every environment, in the order in which they stand in the file first.

    Of a repeat that ran several times the last one counts, so that a retried case is what it became.

    Raises:
        TraceError: the figures of a result are not what they should be.
    """
    groups: dict[tuple[str, str], dict[tuple[int, int], Result]] = {}
    for result in results.results:
        repeats = groups.setdefault((result.environment, result.case), {})
        # Several runs of the same case add their repeats; after one that was not ok the next one stands in for it.
        if result.status == OK:
            for key in [key for key, old in repeats.items() if old.status != OK]:
                del repeats[key]
        place = sum(1 for repeat, _ in repeats if repeat == result.repeat)
        repeats[result.repeat, place] = result
    return tuple(_measured(list(repeats.values())) for repeats in groups.values())


def _measured(runs: Sequence[Result]) -> Measured:
    last = runs[-1]
    bad = [run for run in runs if run.status != OK]
    good = [run for run in runs if run.status == OK]
    shown = bad[-1] if bad else last
    generation = tuple(map(generation_figures, good)) if last.kind == GENERATE else ()
    sdpa = tuple(map(sdpa_figures, good)) if last.kind == SDPA else ()
    times = [_pass_ns(item) / item.tokens for item in generation]
    times += [float(statistics.median(item.times_ns)) for item in sdpa]
    return Measured(
        case=last.case,
        label=last.label,
        settings=last.settings,
        environment=last.environment,
        status=shown.status,
        message=shown.message,
        stack=None if shown.stack is None else tuple(shown.stack),
        largest_batch=shown.largest_batch,
        fit_exact=shown.fit_exact,
        times_ns=tuple(times),
        generation=generation,
        sdpa=sdpa,
    )


def short_message(text: str | None) -> str:
    """A message as far as a list has room for it."""
    found = text or ""
    return found if len(found) <= _SHORT_CHARACTERS else f"{found[:_SHORT_CHARACTERS]}..."


def environment_text(environment: dict[str, Any] | None) -> str:
    """Hardware and versions that matter most, in a line."""
    if environment is None:
        return "an environment that the file does not describe"
    known = {name: str(value) for name, value in environment.items() if value is not None}
    cores = f", cores: {known['cores']}, threads: {known['threads']}" if {"cores", "threads"} <= known.keys() else ""
    where = known.get("gpu") or known.get("cpu", "unknown hardware") + cores
    names = ("torch", "transformers", "cuda", "cudnn", "driver")
    return f"{where}; {', '.join(f'{name} {known[name]}' for name in names if name in known)}"


def varying(items: Iterable[Measured]) -> list[str]:
    """The settings in which they differ, in the order in which cases have them."""
    cases = list(items)
    names = dict.fromkeys(name for item in cases for name in item.settings if name != "kind")
    return [name for name in names if len({repr(item.settings.get(name)) for item in cases}) > 1]


def short(item: Measured, names: Sequence[str]) -> str:
    """A case by the settings that tell it from the others."""
    parts = [_NAMES.get(name, str)(item.settings.get(name)) for name in names]
    return " ".join(parts) or item.label


def sdpa_key(item: Measured) -> tuple[Any, ...]:
    """What cases of one table share: all settings but the backend."""
    return tuple((name, repr(value)) for name, value in item.settings.items() if name != "backend")


def _pass_ns(figures: GenerationFigures) -> float:
    return statistics.median(figures.wall_ns)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
