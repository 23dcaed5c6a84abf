"""Plots of benchmark results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from molprof.analysis.bench.summary import Measured, sdpa_key, short, summed, varying
from molprof.analysis.documents.plots import NotRecordedError, style
from molprof.common.bench_records import GENERATE, SDPA, Results
from molprof.common.values import speed_text, time_text

_BATCH, _CACHE = "batch_size", "kv_cache"
_ROW_INCHES = 0.34
_NARROW_LABEL = 30


def draw_batch(results: Results) -> Figure:
    """Tokens per second over the batch size, with the range of the repeats; both axes logarithmic."""
    done = _generation(results)
    names = [name for name in varying(done) if name not in (_BATCH, "count")]
    series: dict[str, list[Measured]] = {}
    for item in done:
        series.setdefault(_series(item, names, done), []).append(item)
    sizes = sorted({int(item.settings[_BATCH]) for item in done})
    if len(sizes) < 2:
        raise _missing("several batch sizes", "batch")
    figure, (axis,) = style.new_figure(3.4)
    handles = []
    for index, items in enumerate(series.values()):
        items.sort(key=lambda item: int(item.settings[_BATCH]))
        places = [int(item.settings[_BATCH]) for item in items]
        speeds = [item.tokens_per_s or 0.0 for item in items]
        low = [speed - 1e9 / max(item.times_ns) for speed, item in zip(speeds, items, strict=True)]
        high = [1e9 / min(item.times_ns) - speed for speed, item in zip(speeds, items, strict=True)]
        handles.append(
            axis.errorbar(
                places, speeds, yerr=(low, high), color=style.colour(index), linestyle=style.line(index), marker="o",
                markersize=3.5, capsize=2.5, linewidth=1.3,
            )
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    _write_ticks(axis, axis.yaxis)
    axis.set_xlabel("rows generated together")
    axis.set_ylabel("tokens/s, median and range\n(logarithmic)")
    axis.grid(True)
    style.legend_below(figure, handles, [style.caption(name) for name in series], 3)
    return figure


def draw_cache(results: Results) -> Figure:
    """A bar for each configuration: its timed passes, and what the first pass took more; a colour for each cache."""
    done = [item for item in _generation(results) if item.generation]
    caches = list(dict.fromkeys(str(item.settings.get(_CACHE)) for item in done))
    if len(caches) < 2:
        raise _missing("several KV caches", "cache")
    names = [name for name in varying(done) if name != "count"]
    ordered = sorted(done, key=lambda item: (short(item, [name for name in names if name != _CACHE]), item.label))
    steady = np.array([item.wall_ns() or 0.0 for item in ordered])
    extra = np.array([max(0.0, item.first_extra_ns() or 0.0) for item in ordered])
    longest = max(steady + extra)
    scale, unit = style.time_unit(longest)
    figure, (axis,) = style.new_figure(1.15 + _ROW_INCHES * len(ordered))
    rows = range(len(ordered))
    colours = [style.colour(caches.index(str(item.settings.get(_CACHE)))) for item in ordered]
    handles = [
        axis.barh(rows, steady / scale, 0.68, color=colours),
        axis.barh(rows, extra / scale, 0.68, left=steady / scale, color=style.PAPER, hatch=style.hatch(1)),
    ]
    for row in rows:
        text = f"{time_text(steady[row])} steady, {time_text(extra[row])} more at first"
        style.write_behind(axis, (steady[row] + extra[row]) / scale, row, text)
    style.name_rows(axis, [_series(item, names, done) for item in ordered], _NARROW_LABEL)
    axis.set_xlim(0, 1.5 * longest / scale)
    axis.set_xlabel(f"time of a pass ({unit})")
    style.legend_below(figure, handles, ["a timed pass", "the first pass beyond it: compiling, set-up"], 2)
    return figure


def draw_heat(results: Results) -> Figure:
    """Tokens per second by configuration (down) and batch size (across); the faster in its column, the darker."""
    done = _generation(results)
    names = [name for name in varying(done) if name not in (_BATCH, "count")]
    sizes = sorted({int(item.settings[_BATCH]) for item in done})
    rows = list(dict.fromkeys(sorted(_series(item, names, done) for item in done)))
    if len(rows) < 2:
        raise _missing("several configurations", "matrix")
    speeds: dict[tuple[str, int], float] = {}
    for item in done:
        place = _series(item, names, done), int(item.settings[_BATCH])
        speeds[place] = max(speeds.get(place, 0.0), item.tokens_per_s or 0.0)
    best = {size: max(speed for (_, other), speed in speeds.items() if other == size) for size in sizes}
    figure, (axis,) = style.new_figure(1.0 + _ROW_INCHES * len(rows))
    # Text is readable on white and on light blue.
    shades = LinearSegmentedColormap.from_list("speed", [style.PAPER, style.SKY])
    for (row, name), (column, size) in itertools.product(enumerate(rows), enumerate(sizes)):
        speed = speeds.get((name, size))
        share = 0.0 if speed is None else speed / best[size]
        axis.barh(row, 1, 1, left=column - 0.5, color=shades(share**2))
        text = "no result" if speed is None else speed_text(speed)
        weight = "bold" if share == 1 else "normal"
        style.write_inside(axis, column, row, text, color=style.INK, fontweight=weight)
    axis.set_xlim(-0.5, len(sizes) - 0.5)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axis.set_yticks(range(len(rows)), [style.caption(row, _NARROW_LABEL) for row in rows])
    axis.tick_params(length=0)
    axis.set_xlabel("rows generated together; tokens/s, the fastest of each column bold")
    return figure


def draw_sdpa(results: Results) -> Figure:
    """Median time by backend on a logarithmic axis, a group of bars for each shape and mask."""
    done = [item for item in summed(results) if item.kind == SDPA and item.times_ns]
    if not done:
        raise _missing("attention kernels", "sdpa")
    ordered = sorted(done, key=lambda item: (sdpa_key(item), item.median_ns or 0.0))
    scale, unit = style.time_unit(max(item.median_ns or 0.0 for item in ordered))
    backends = list(dict.fromkeys(str(item.settings.get("backend")) for item in done))
    names = [name for name in varying(done) if name != "backend"]
    figure, (axis,) = style.new_figure(0.9 + _ROW_INCHES * len(ordered))
    values = [(item.median_ns or 0.0) / scale for item in ordered]
    colours = [style.colour(backends.index(str(item.settings.get("backend")))) for item in ordered]
    axis.barh(range(len(ordered)), values, 0.68, color=colours)
    for row, item in enumerate(ordered):
        style.write_behind(axis, values[row], row, time_text(item.median_ns))
    labels = [f"{item.settings.get('backend')} {short(item, names) if names else ''}".strip() for item in ordered]
    style.name_rows(axis, labels, _NARROW_LABEL)
    axis.set_xscale("log")
    axis.set_xlim(min(values) / 2, max(values) * 4)
    _write_ticks(axis, axis.xaxis)
    axis.set_xlabel(f"median time of a call ({unit}, logarithmic)")
    return figure


def _missing(what: str, benchmark: str) -> NotRecordedError:
    hint = f"molprof bench {benchmark} -o FILE measures it; molprof bench show FILE: what is there"
    return NotRecordedError(what, hint)


def _write_ticks(axes: Axes, axis: Axis) -> None:
    """Puts plain numbers at 1, 2 and 5 of each decade: the axis may be shorter than one."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, place: f"{value:,.10g}")
    axes.minorticks_off()


def _generation(results: Results) -> list[Measured]:
    done = [item for item in summed(results) if item.kind == GENERATE and item.times_ns]
    if not done:
        raise _missing("whole generation that ran", "matrix")
    return done


def _series(item: Measured, names: Sequence[str], all_items: Sequence[Measured]) -> str:
    """The settings that vary, and the environment where there are several."""
    text = short(item, names) if names else str(item.settings.get("model"))
    several = len({other.environment for other in all_items}) > 1
    return f"{text} @{item.environment[:4]}" if several else text
