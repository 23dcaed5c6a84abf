"""Plots of benchmark results, and of predicted batch sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from molprof.analysis.bench.summary import MeasuredCase, sdpa_key, short, summed, varying
from molprof.analysis.documents.plots import NotRecordedError, style
from molprof.analysis.predict.sizes import Size
from molprof.common.bench_records import GENERATE, SDPA, Results
from molprof.common.settings import SETTINGS
from molprof.common.values import speed_text, time_text


def draw_batch(results: Results) -> Figure:
    """Draw tokens per second over the batch size, with the range of the repeats; both axes logarithmic."""
    series, sizes = _by_series(results)
    if len(sizes) < 2:
        raise _missing("several batch sizes", "batch")
    figure, (axis,) = style.new_figure(style.ROWS)
    lines = []
    for index, (name, items) in enumerate(series.items()):
        speeds = [item.tokens_per_s or 0.0 for item in items]
        low = [speed - 1e9 / max(item.times_ns) for speed, item in zip(speeds, items, strict=True)]
        high = [1e9 / min(item.times_ns) - speed for speed, item in zip(speeds, items, strict=True)]
        where = list(map(_size, items))
        line = style.draw_line(axis, index, where, speeds, **style.MARKED)
        axis.errorbar(where, speeds, yerr=(low, high), fmt="none", ecolor=line.get_color(), capsize=2.5)
        lines.append((style.caption(name), line))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, list(map(str, sizes)))
    _write_ticks(axis, axis.yaxis)
    axis.set_xlabel("rows generated together")
    axis.set_ylabel("tokens/s, median and range\n(logarithmic)")
    axis.grid(True)
    style.legend_below(figure, lines, 3)
    return figure


def draw_rows(subject: tuple[Sequence[Size], str]) -> Figure:
    """Draw the predicted time of a step and rows or tokens per second over the batch size, with their intervals."""
    sizes, speed = subject
    batches = [size.rows for size in sizes]
    figure, axes = style.new_figure(style.ROWS, style.ROWS)
    steps, speeds = [size.step_ns for size in sizes], [size.per_s for size in sizes]
    in_graphs = [size.graph_ns.value for size in sizes]
    graph_speeds = [1e9 * rows / ns for rows, ns in zip(batches, in_graphs, strict=True)]
    for axis, figures, others in zip(axes, (steps, speeds), (in_graphs, graph_speeds), strict=True):
        band = [item.low for item in figures], [item.high for item in figures]
        style.draw_line(axis, 0, batches, [item.value for item in figures], band, **style.MARKED)
        style.draw_line(axis, 1, batches, others)
        axis.set_yscale("log")
        axis.grid(True)
        _write_ticks(axis, axis.yaxis)
    style.label_axis(axes[0].yaxis, max(item.value for item in steps), "a step", ", logarithmic")
    axes[1].set_ylabel(f"{speed}\n(logarithmic)")
    axes[-1].set_xscale("log", base=2)
    axes[-1].set_xticks(batches, list(map(str, batches)))
    axes[-1].set_xlabel("rows in a batch")
    return figure


def draw_cache(results: Results) -> Figure:
    """Return a bar for each configuration: its timed passes, and what the first pass took more.

    A colour for each cache.
    """
    done = _generation(results)
    if len({item.settings.get("kv_cache") for item in done}) < 2:
        raise _missing("several KV caches", "cache")
    ordered = sorted(done, key=lambda item: (short(item, varying(done, "count", "kv_cache")), item.label))
    figure, (axis,) = style.new_figure(len(ordered))
    longest_ns = 0.0
    for row, item in enumerate(ordered):
        steady, extra = item.median("wall_ns") or 0.0, max(0.0, item.median("first_pass_extra_ns") or 0.0)
        text = f"{time_text(steady)} steady, {time_text(extra)} more at first"
        style.draw_bar(axis, row, steady, _look(done, item, "kv_cache"))
        style.draw_bar(axis, row, extra, style.FIRST, steady, behind=text)
        longest_ns = max(longest_ns, steady + extra)
    style.name_rows(axis, [_name(item, varying(done, "count"), done) for item in ordered])
    axis.set_xlim(0, 1.5 * longest_ns)
    style.label_axis(axis.xaxis, longest_ns, "time of a pass")
    timed = ("a timed pass", _look(done, ordered[0], "kv_cache"))
    style.legend_below(figure, [timed, ("the first pass beyond it: compiling, set-up", style.FIRST)], 2)
    return figure


def draw_heat(results: Results) -> Figure:
    """Draw tokens per second by configuration (down) and batch size (across); in each column faster is darker."""
    series, sizes = _by_series(results)
    if len(series) < 2:
        raise _missing("several configurations", "matrix")
    speeds: dict[tuple[str, int], float] = {}
    for name, items in series.items():
        for item in items:
            speeds[name, _size(item)] = max(speeds.get((name, _size(item)), 0.0), item.tokens_per_s or 0.0)
    best = {size: max(speed for (_, other), speed in speeds.items() if other == size) for size in sizes}
    figure, (axis,) = style.new_figure(len(series))
    # Text is readable on white and on light blue.
    shades = LinearSegmentedColormap.from_list("speed", [style.PAPER, style.SKY])
    for (row, name), (column, size) in itertools.product(enumerate(sorted(series)), enumerate(sizes)):
        speed = speeds.get((name, size))
        share = 0.0 if speed is None else speed / best[size]
        text = "no result" if speed is None else speed_text(speed)
        axis.barh(row, 1, 1, left=column - 0.5, color=shades(share**2))
        axis.text(column, row, text, weight="bold" if share == 1 else "normal", **style.INSIDE)
    axis.set_xlim(-0.5, len(sizes) - 0.5)
    axis.set_ylim(len(series) - 0.5, -0.5)
    axis.set_xticks(range(len(sizes)), list(map(str, sizes)))
    axis.set_yticks(range(len(series)), [style.caption(name) for name in sorted(series)])
    axis.tick_params(length=0)
    axis.set_xlabel("rows generated together; tokens/s, the fastest of each column bold")
    return figure


def draw_sdpa(results: Results) -> Figure:
    """Draw the median time by backend on a logarithmic axis, a group of bars for each shape and mask."""
    done = [item for item in summed(results) if item.kind == SDPA and item.times_ns]
    if not done:
        raise _missing("attention kernels", "sdpa")
    ordered = sorted(done, key=lambda item: (sdpa_key(item), item.median_ns or 0.0))
    times_ns = [item.median_ns or 0.0 for item in ordered]
    figure, (axis,) = style.new_figure(len(ordered))
    for row, (item, time_ns) in enumerate(zip(ordered, times_ns, strict=True)):
        style.draw_bar(axis, row, time_ns, _look(done, item, "backend"), behind=time_text(time_ns))
    names = varying(done, "backend")
    labels = [f"{item.settings.get('backend')} {short(item, names) if names else ''}".strip() for item in ordered]
    style.name_rows(axis, labels)
    axis.set_xscale("log")
    axis.set_xlim(min(times_ns) / 2, max(times_ns) * 4)
    _write_ticks(axis, axis.xaxis)
    style.label_axis(axis.xaxis, max(times_ns), "median time of a call", ", logarithmic")
    return figure


def _missing(what: str, benchmark: str) -> NotRecordedError:
    command = "bench sdpa -o FILE" if benchmark == "sdpa" else f"sweep {benchmark}"
    hint = f"molprof {command} measures it; molprof sweep show: what is there"
    return NotRecordedError(what, hint)


def _write_ticks(axes: Axes, axis: Axis) -> None:
    """Put plain numbers at 1, 2 and 5 of each decade: the axis may be shorter than one."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, position: f"{value:,.10g}")
    axes.minorticks_off()


def _generation(results: Results) -> list[MeasuredCase]:
    done = [item for item in summed(results) if item.kind == GENERATE and item.times_ns]
    if not done:
        raise _missing("whole generation that ran", "matrix")
    return done


def _by_series(results: Results) -> tuple[dict[str, list[MeasuredCase]], list[int]]:
    """Return cases of whole generation by the settings that vary and by batch size, and all batch sizes."""
    done = _generation(results)
    names = varying(done, "batch_size", "count")
    series: dict[str, list[MeasuredCase]] = {}
    for item in done:
        series.setdefault(_name(item, names, done), []).append(item)
    return {name: sorted(items, key=_size) for name, items in series.items()}, sorted(set(map(_size, done)))


def _size(item: MeasuredCase) -> int:
    return int(item.settings.get("batch_size", SETTINGS["batch_size"].default))


def _name(item: MeasuredCase, names: Sequence[str], all_items: Sequence[MeasuredCase]) -> str:
    """Return the settings that vary, and the environment where there are several."""
    text = short(item, names) if names else str(item.settings.get("model"))
    several = len({other.environment for other in all_items}) > 1
    return f"{text} @{item.environment[:4]}" if several else text


def _look(done: Sequence[MeasuredCase], item: MeasuredCase, setting: str) -> style.Look:
    """Return the look of the item's value of a setting, without hatch."""
    values = list(dict.fromkeys(other.settings.get(setting) for other in done))
    return style.look(values.index(item.settings.get(setting)))[0], ""
