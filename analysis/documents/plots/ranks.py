"""The ranks of a job on one time axis: computing, moving data, waiting, idle."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch

from molprof.analysis.documents.plots import style
from molprof.analysis.ranks import Job
from molprof.common.values import time_text

# Columns of the picture; each shows what takes most of it.
_SLOTS = 900
_ROWS = 64
_HEIGHT = 0.74
_LOOKS = (
    ("compute", style.BLUE, ""),
    ("exposed communication", style.ORANGE, "////"),
    ("waiting for the last rank", style.RED, "xxxx"),
)


def draw_ranks(job: Job) -> Figure:
    """One row for each rank; starts of steps are marked."""
    shown = job.ranks[:_ROWS]
    offsets = job.clocks.offsets_ns
    begin = min(rank.start_ns - offsets[rank.rank] for rank in shown)
    end = max(rank.end_ns - offsets[rank.rank] for rank in shown)
    figure, (axis,) = style.new_figure(1.2 + 0.3 * len(shown))
    scale, unit = style.time_unit(end - begin)
    edges = begin + np.linspace(0, end - begin, _SLOTS + 1).astype(np.int64)
    places = (edges - begin) / scale
    for row, rank in enumerate(shown):
        state = _states(job, rank.rank, edges)
        bars: dict[int, list[tuple[float, float]]] = defaultdict(list)
        bounds = np.flatnonzero(np.diff(state)) + 1
        for first, last in zip(np.append(0, bounds), np.append(bounds, len(state)), strict=True):
            if state[first] < len(_LOOKS):
                bars[int(state[first])].append((float(places[first]), float(places[last] - places[first])))
        for number, spans in bars.items():
            _, fill, hatch = _LOOKS[number]
            path = style.bars_path(spans, row, _HEIGHT)
            axis.add_patch(PathPatch(path, facecolor=fill, hatch=hatch or None, edgecolor=style.EDGE, linewidth=0.2))
        for step in rank.steps[1:]:
            place = (step.start_ns - offsets[rank.rank] - begin) / scale
            axis.plot((place, place), (row - 0.5, row + 0.5), color=style.INK, linewidth=0.8)
    style.name_rows(axis, [f"rank {rank.rank}" for rank in shown])
    axis.set_xlim(0, (end - begin) / scale)
    more = f"; the first {_ROWS} of {len(job.ranks)} ranks" if len(job.ranks) > _ROWS else ""
    column = time_text((end - begin) / _SLOTS)
    axis.set_xlabel(f"time on the clock of rank {shown[0].rank} ({unit}); a column is {column}{more}")
    handles = [Patch(facecolor=fill, hatch=hatch or None) for _, fill, hatch in _LOOKS]
    handles.append(Patch(facecolor=style.PAPER))
    style.legend_below(figure, handles, [*(name for name, _, _ in _LOOKS), "idle"], 4)
    return figure


def _states(job: Job, rank: int, edges: np.ndarray) -> np.ndarray:
    """Of each column, the number of what takes most of it: as in _LOOKS, idle behind them."""
    done = job.activities[rank]
    edges = edges + job.clocks.offsets_ns[rank]
    compute, moving, busy = (
        item.covered(edges[:-1], edges[1:]) for item in (done.compute, done.compute_or_moving, done.busy)
    )
    parts = np.stack([compute, moving - compute, busy - moving, np.diff(edges) - busy])
    return np.asarray(np.argmax(parts, axis=0))
