"""Results by case and environment: the median over repeats, its interval, and names of cases."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from molprof.analysis.compare.statistics import ConfidenceInterval, median_interval
from molprof.common.bench_records import (
    GENERATE,
    MASKS,
    SDPA,
    CaseResult,
    GenerationFigures,
    MaskFigures,
    Results,
    SdpaFigures,
)
from molprof.common.manifest import Machine
from molprof.common.process import NOT_MEASURED, OK
from molprof.common.settings import SETTINGS

# How settings are shown whose value alone is unclear, and those that are None.
_SHOWN = {
    "batch": "b{}", "batch_size": "b{}", "compile": "compile {}", "padding_multiple": "pad {}",
    "max_cache_length": "cache {}", "count": "n{}", "heads": "h{}", "kv_heads": "kv{}", "head_dim": "d{}",
    "queries": "q{}", "keys": "k{}",
}  # fmt: skip
_NONE = {"processor": "no processor", "max_cache_length": "cache as needed"}


@dataclass(frozen=True)
class MeasuredCase(CaseResult):
    """A case in one environment: the last result of its processes, that of one that was not ok if there is any."""

    times_ns: tuple[float, ...] = ()  # of each process that was ok: its median pass per token, or its median call
    generation: tuple[GenerationFigures, ...] = ()  # of those processes
    sdpa: tuple[SdpaFigures, ...] = ()
    masks: tuple[MaskFigures, ...] = ()

    @property
    def median_ns(self) -> float | None:
        """The median of `times_ns`; None if no process was ok."""
        return statistics.median(self.times_ns) if self.times_ns else None

    @property
    def interval(self) -> ConfidenceInterval | None:
        """The confidence interval of `median_ns`; None with too few repeats."""
        return median_interval(self.times_ns)

    @property
    def tokens_per_s(self) -> float | None:
        """The speed of whole generation."""
        return 1e9 / self.median_ns if self.median_ns and self.kind == GENERATE else None

    def median(self, name: str) -> float | None:
        """Return the median over processes of a figure, one of `_FIGURES` or a number; None: not recorded."""
        items: Sequence[Any] = self.generation if name in _FIGURES else self.generation or self.sdpa
        figure = _FIGURES.get(name, lambda item: getattr(item, name, None))
        values = [value for item in items if (value := figure(item)) is not None]
        return statistics.median(values) if values else None

    @property
    def machines(self) -> list[Machine]:
        """Load of the machine by other programs, one record per process; empty if it was not recorded."""
        measured: Sequence[GenerationFigures | SdpaFigures] = (*self.generation, *self.sdpa)
        return [figures.machine for figures in measured if figures.machine is not None]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the times of the case are in doubt."""
        spans = [span for machine in self.machines for span in machine.passes]
        return Machine(self.machines[0].cores, None, spans).doubts() if spans else ()

    @property
    def recompiles(self) -> int | None:
        """The frames compiled in timed passes of all processes; anything but 0 is no steady state."""
        return _sum([count for item in self.generation for count in item.compiles]) if self.generation else None

    def phase_ratios(self) -> dict[str, float]:
        """Return the share of wall time by phase, over all timed passes of all processes."""
        wall = sum(sum(item.wall_ns) for item in self.generation)
        totals: Counter[str] = Counter()
        for phases in itertools.chain.from_iterable(item.phases_ns for item in self.generation):
            totals.update(phases)
        return {name: value / wall for name, value in totals.items()} if wall else {}


def _sum(values: Sequence[int | None]) -> int | None:
    recorded = [value for value in values if value is not None]
    return sum(recorded) if len(recorded) == len(values) else None


# Of a process of whole generation: its median pass, what its first warm-up pass took beyond that, and what was compiled
# before the timed passes.
_FIGURES: dict[str, Callable[[Any], float | None]] = {
    "wall_ns": lambda item: statistics.median(item.wall_ns),
    "first_pass_extra_ns": lambda item: item.warmup_ns[0] - statistics.median(item.wall_ns) if item.warmup_ns else None,
    "compile_ns": lambda item: _sum(item.warmup_compile_ns),
    "first_compiles": lambda item: _sum(item.warmup_compiles),
}


def summed(results: Results) -> tuple[MeasuredCase, ...]:
    """Return every case in every environment with its last results, in order of first appearance. Raises TraceError."""
    groups: dict[tuple[str, str], list[CaseResult]] = {}
    for result in results.results:
        repeats = groups.setdefault((result.environment, result.case), [])
        # Repeats of several runs add up; a result that is ok replaces those that were not.
        if result.status == OK:
            repeats[:] = [old for old in repeats if old.status == OK]
        repeats.append(result)
    return tuple(map(_measured, groups.values()))


def _measured(runs: Sequence[CaseResult]) -> MeasuredCase:
    good = [run for run in runs if run.status == OK]
    # A repeat whose memory other programs took says nothing of the case.
    ended = [run for run in runs if run.status != NOT_MEASURED] or runs
    shown = next((run for run in reversed(ended) if run.status != OK), ended[-1])
    generation = tuple(run.read_figures(GenerationFigures) for run in good) if shown.kind == GENERATE else ()
    sdpa = tuple(run.read_figures(SdpaFigures) for run in good) if shown.kind == SDPA else ()
    masks = tuple(run.read_figures(MaskFigures) for run in good) if shown.kind == MASKS else ()
    times = [statistics.median(item.wall_ns) / item.tokens for item in generation]
    times += [float(statistics.median(item.times_ns)) for item in sdpa]
    return MeasuredCase(**vars(shown), times_ns=tuple(times), generation=generation, sdpa=sdpa, masks=masks)


def short_message(text: str | None) -> str:
    """Return the beginning of a message, for tables; JSON has all of it."""
    message = text or ""
    return message if len(message) <= 150 else f"{message[:150]}..."


def environment_text(environment: dict[str, Any] | None) -> str:
    """Return the main hardware and versions in one line."""
    if environment is None:
        return "an environment that the file does not describe"
    values = {name: str(value) for name, value in environment.items() if value is not None}
    cores = f", cores: {values['cores']}, threads: {values['threads']}" if {"cores", "threads"} <= values.keys() else ""
    where = values.get("gpu") or values.get("cpu", "unknown hardware") + cores
    names = ("torch", "transformers", "cuda", "cudnn", "driver")
    return f"{where}; {', '.join(f'{name} {values[name]}' for name in names if name in values)}"


def varying(items: Iterable[MeasuredCase], *left_out: str) -> list[str]:
    """Return the settings in which cases differ, in the order of a case's settings, without the excluded ones."""
    cases = list(items)
    names = dict.fromkeys(name for item in cases for name in item.settings if name not in ("kind", *left_out))
    return [name for name in names if len({repr(item.settings.get(name)) for item in cases}) > 1]


def short(item: MeasuredCase, names: Sequence[str]) -> str:
    """Return a case's name, made of the settings `names` in which cases differ."""
    texts = []
    for name in names:
        row = SETTINGS.get(name)
        # A case leaves out most settings that have their default.
        value = item.settings.get(name, None if row is None else row.default)
        texts.append(setting_text(name, value))
    return " ".join(texts) or item.label


def setting_text(name: str, value: Any) -> str:
    """Return a value in the name of a configuration, such as `pad 8`, `no tf32`."""
    if isinstance(value, bool):
        return f"{'' if value else 'no '}{name.replace('_', ' ')}"
    return _NONE.get(name, "none") if value is None else _SHOWN.get(name, "{}").format(value)


def sdpa_key(item: MeasuredCase) -> tuple[Any, ...]:
    """Return the key of the table that a case belongs to: all settings but the backend."""
    return tuple((name, repr(value)) for name, value in item.settings.items() if name != "backend")
