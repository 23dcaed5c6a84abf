"""The view that the UI opens with: pinned tracks in order, strips of slices above them, and a zoom."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from molprof.analysis.ui.contents import Contents, Span, Strip
from molprof.analysis.ui.tracks import Tracks
from molprof.queries import PACKAGE, modules

# The SQL module with the strips of this trace.
MODULE = f"{PACKAGE}.view"
# Pinned token tracks of one file, and of each of several: the rest needs room too.
MAX_SEQUENCES = 6
MAX_SEQUENCES_EACH = 2
MAX_STREAMS = 16
# Of the zoom, on either side.
_MARGIN_RATIO = 0.04
_QUOTED = str.maketrans({"'": "''", "\0": None})


@dataclass(frozen=True)
class FileView:
    """One file of the view."""

    contents: Contents
    tracks: Tracks
    label: str = ""
    shift_ns: int = 0  # added to its times


@dataclass(frozen=True)
class View:
    """What the page needs to know."""

    title: str  # of the window
    commands: tuple[tuple[str, tuple[str, ...]], ...]  # id and arguments, run when the trace is loaded
    modules: dict[str, str]  # SQL modules to register, key to text
    visible: Span | None  # what to zoom to; None: everything
    pinned: tuple[str, ...]  # names of the pinned rows, in order
    hosts: tuple[str, ...]  # of several files, the processes with operators, in order
    notes: tuple[str, ...]  # what is not shown


class _Builder:
    """Commands and strips in the order in which they are shown."""

    def __init__(self) -> None:
        self.strips: list[tuple[Strip, int]] = []
        self.commands: list[tuple[str, tuple[str, ...]]] = []
        self.pinned: list[str] = []

    def add_strips(self, strips: Iterable[Strip], before: str, shift_ns: int) -> None:
        for strip in strips:
            sql = f"SELECT ts, dur, name FROM molprof_view WHERE strip = {len(self.strips)}"
            self.strips.append((strip, shift_ns))
            self.commands.append(("dev.perfetto.AddDebugSliceTrack", (sql, before + strip.title)))
            self.pinned.append(before + strip.title)

    def pin(self, names: Iterable[str]) -> None:
        for name in names:
            self.commands.append(("dev.perfetto.PinTracksByRegex", (f"^{_pattern(name)}$",)))
            self.pinned.append(name)

    def expand(self, names: Iterable[str]) -> None:
        for name in names:
            self.commands.append(("dev.perfetto.ExpandTracksByRegex", (f"^{_pattern(name)}$",)))


def build_view(title: str, files: Sequence[FileView], whole: Span) -> View:
    """The view of one file, or of several in one trace whose times span `whole`; it zooms by the first.

    molprof's SQL package goes with a single file only: of several, its tables would mix their events.
    """
    builder = _Builder()
    notes: list[str] = []
    most = MAX_SEQUENCES if len(files) == 1 else MAX_SEQUENCES_EACH
    for file in files:
        before = f"{file.label}: " if file.label else ""
        contents = file.contents
        names = file.tracks.sequences
        known = [names[item.track] for item in contents.sequences if item.track in names]
        builder.add_strips(contents.before, before, file.shift_ns)
        builder.pin(known[:most])
        builder.add_strips(contents.tokens, before, file.shift_ns)
        builder.pin(file.tracks.gpu[:MAX_STREAMS])
        builder.add_strips(contents.idle, before, file.shift_ns)
        builder.expand(file.tracks.hosts)
        streams = ("GPU streams", len(file.tracks.gpu), MAX_STREAMS)
        for what, there, shown in (("token tracks", len(known), most), streams):
            if there > shown:
                notes.append(f"{before}{shown} of {there} {what} are pinned; the others stand in their process below")
        notes += [
            f"{before}{strip.title}: {strip.left_out:,} shorter ones are not shown"
            for strip in (*contents.before, *contents.tokens, *contents.idle)
            if strip.left_out
        ]
    package = dict(modules()) if len(files) == 1 else {}
    if builder.strips:
        builder.commands.insert(0, ("dev.perfetto.RunQuery", (f"INCLUDE PERFETTO MODULE {MODULE};",)))
        package[MODULE] = _strips_sql(builder.strips)
    zoom = files[0].contents.zoom
    return View(
        title=title,
        commands=tuple(builder.commands),
        modules=package,
        visible=None if zoom is None else _visible(zoom, files[0].shift_ns, whole),
        pinned=tuple(builder.pinned),
        hosts=tuple(name for file in files for name in file.tracks.hosts) if len(files) > 1 else (),
        notes=tuple(notes),
    )


def _visible(zoom: Span, shift_ns: int, whole: Span) -> Span | None:
    """The zoom with a margin, inside the trace; None where it is empty."""
    margin = round(zoom.dur_ns * _MARGIN_RATIO)
    start = max(whole.start_ns, zoom.start_ns + shift_ns - margin)
    end = min(whole.end_ns, zoom.end_ns + shift_ns + margin)
    return Span(start, end - start) if end > start else None


def _pattern(name: str) -> str:
    """A JavaScript pattern that matches the text alone."""
    return re.sub(r"[\\^$.*+?()\[\]{}|/-]", r"\\\g<0>", name)


def _strips_sql(strips: Sequence[tuple[Strip, int]]) -> str:
    rows = ",\n".join(
        f"({number},{ts + shift_ns},{dur},'{name.translate(_QUOTED)}')"
        for number, (strip, shift_ns) in enumerate(strips)
        for ts, dur, name in strip.slices
    )
    return (
        "CREATE PERFETTO TABLE molprof_view AS\n"
        f"WITH item(strip, ts, dur, name) AS (VALUES\n{rows}\n)\n"
        "SELECT strip, ts, dur, name FROM item ORDER BY strip, ts;\n"
    )


def script(view: View, template: str, remote: bool) -> str:
    """The page's script with the view in it."""
    # JavaScript's numbers are too short.
    visible = None if view.visible is None else [str(view.visible.start_ns), str(view.visible.end_ns)]
    data = {
        "title": view.title,
        "commands": [{"id": name, "args": arguments} for name, arguments in view.commands],
        "package": {"name": PACKAGE, "modules": [{"name": key, "sql": sql} for key, sql in view.modules.items()]},
        "visible": visible,
        "hosts": view.hosts,
        "last": view.pinned[-1] if view.pinned else None,
        "remote": remote,
    }
    return template.replace("/* VIEW */ null", json.dumps(data))  # ASCII
