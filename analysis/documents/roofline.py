"""Roofline of a trace as a document: distance from the GPU's peaks, in total, then by operator and shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from molprof.analysis.documents.plots import plot_section
from molprof.analysis.reader import path_text
from molprof.analysis.roofline.operands import RECORD_SHAPES
from molprof.analysis.roofline.peaks import MEMORY, Peaks
from molprof.analysis.roofline.read import HEAVY, CallGroup, Roofline
from molprof.common.document import Document, Field, Section, named, objects, records, table_of
from molprof.common.values import counted, per, percent_text, time_text

SCHEMA = 1
# Rows below this share of GPU time are left out of tables.
LEAST_RATIO = 0.005
# Share of GPU time of which formulas tell what it must do, for a statement about the whole.
LEAST_COVERED = 0.95
# A group in JSON and CSV.
_ROW = (
    "operator", "family", ("shapes", "arguments"), "types", "calls", "kernels", "gpu_ns", ("flops", "work.flops"),
    ("read_bytes", "work.read_bytes"), ("written_bytes", "work.written_bytes"),
    ("kind", lambda group: None if group.work is None or group.work.flops is None else group.work.kind),
    "least_ns", "bound", "tflops", "tbps", "reached_ratio",
)  # fmt: skip

_JSON = (
    ("trace", "info.head"), ("device", lambda roofline: roofline.peaks.name or None),
    ("peaks", "peaks", ("source", "tflops", "memory_tbps")), "span_ns", "gpu_ns", "covered_ns",
    ("steps", lambda roofline: roofline.steps or None), "parts", ("operators", "groups", _ROW),
)  # fmt: skip


def roofline_document(roofline: Roofline) -> Document:
    """Return the document of a roofline."""
    return Document(
        title=f"{path_text(roofline.info.path)} by shape",
        sections=(*_way(roofline), _families(roofline), _groups(roofline), *_peaks(roofline.peaks))
        if roofline.has_shapes
        else (),
        data=lambda: {"schema": SCHEMA, **named(roofline, *_JSON)},
        records=lambda: records(objects(roofline.groups, *_ROW)),
        warnings=roofline.notes,
        summary=_summary(roofline),
    )


def _summary(roofline: Roofline) -> tuple[str, ...]:
    if not roofline.has_shapes:  # then operators have times alone, which other tables show
        return (f"No shapes are recorded: {RECORD_SHAPES}. molprof report by operator has operators without them.",)
    share = per(roofline.covered_ns, roofline.gpu_ns)
    lines = [
        f"{time_text(roofline.gpu_ns)} of GPU work on {roofline.peaks.name or 'a GPU without a name'}: formulas tell "
        f"what {percent_text(share or 0)} of it must do at least."
    ]
    if roofline.parts:
        of_span = percent_text(roofline.parts[0].ns / roofline.span_ns)
        light = f"{time_text(roofline.parts[0].ns)} at the speed of light, {of_span}"
        all_known = share is not None and share >= LEAST_COVERED
        lines.append(
            f"The recorded {time_text(roofline.span_ns)} would take {light}: every product and attention at the peaks, "
            "nothing else."
            if all_known
            else f"Of the recorded {time_text(roofline.span_ns)}, the known products and attention would take {light}."
        )
    elif not roofline.peaks.memory_tbps:
        lines.append(f"Its peaks are not known: give them with --peak {MEMORY}=TB_PER_S and --peak bf16=TFLOPS.")
    return tuple(lines)


def _way(roofline: Roofline) -> list[Section]:
    if not roofline.parts:
        return []
    fields: list[Field] = [
        ("part", "name", "name"), ("time", "ns", "ns"), ("share", "ratio", lambda part: part.ns / roofline.span_ns),
    ]  # fmt: skip
    if roofline.steps > 1:
        fields.append(("per step", "ns", lambda part: part.ns / roofline.steps))
    fields.append(("what it is", "text", "meaning"))
    total = f"They add up to the {time_text(roofline.span_ns)} from the first to the last work of the GPU."
    first, *between = roofline.parts
    drawn = round(first.ns), roofline.span_ns, {part.name: round(part.ns) for part in between}
    return [
        Section("From the speed of light to the trace", (total,), table_of(roofline.parts, *fields)),
        plot_section(["light"], drawn),
    ]


def _families(roofline: Roofline) -> Section:
    """Return GPU time by family, with its amount of work and the share of what the GPU could do."""
    sums: defaultdict[str, list[CallGroup]] = defaultdict(list)
    for group in roofline.groups:
        sums[group.family].append(group)
    rows = sorted((_family(name, groups) for name, groups in sums.items()), key=lambda row: -row["gpu_ns"])
    return Section(
        "By what operators do",
        table=table_of(
            rows,
            ("family", "name"), ("calls", "count"), ("GPU time", "ns", "gpu_ns"),
            ("share", "ratio", lambda row: per(row["gpu_ns"], roofline.gpu_ns)),
            ("TFLOP/s", "number", "tflops"), ("TB/s", "number", "tbps"),
            ("reached", "ratio", "reached_ratio"),
            missing="-",
        ),
    )  # fmt: skip


def _family(name: str, groups: Sequence[CallGroup]) -> dict[str, Any]:
    gpu_ns = sum(group.gpu_ns for group in groups)
    works = [(group.work, group.calls) for group in groups if group.work is not None]
    flops = sum((work.flops or 0) * calls for work, calls in works)
    moved = sum(work.bytes * calls for work, calls in works)
    least = [group.least_ns * group.calls for group in groups if group.least_ns is not None]
    least_ns = sum(least) if len(least) == len(groups) else None
    return {
        "family": name,
        "calls": sum(group.calls for group in groups),
        "gpu_ns": gpu_ns,
        "tflops": per(flops / 1e3, gpu_ns) if name in HEAVY else None,
        "tbps": per(moved / 1e3, gpu_ns) if works else None,
        "least_ns": least_ns,
        "reached_ratio": None if least_ns is None else per(least_ns, gpu_ns),
    }


def _groups(roofline: Roofline) -> Section:
    shown = [group for group in roofline.groups if group.gpu_ns >= LEAST_RATIO * roofline.gpu_ns]
    rest = len(roofline.groups) - len(shown)
    notes = ["Reached: the least time, the longer of compute and memory at the peaks, as a share of the recorded time."]
    if rest:
        notes.append(
            f"Not shown: {counted(rest, 'row')} below {percent_text(LEAST_RATIO)} of GPU time. JSON and CSV have all."
        )
    return Section(
        "By operator and shapes",
        tuple(notes),
        table_of(
            shown,
            ("operator", "name"), ("shapes", "path", "arguments"), ("calls", "count"), ("GPU time", "ns", "gpu_ns"),
            ("each", "ns", lambda group: group.gpu_ns / group.calls), ("bound by", "name", "bound"),
            ("reached", "ratio", "reached_ratio"),
            missing="-",
        ),
    )  # fmt: skip


def _peaks(peaks: Peaks) -> list[Section]:
    if not peaks.source:
        return []
    rows = [{"peak": f"{kind}, dense", "value": f"{value:g} TFLOP/s"} for kind, value in peaks.tflops.items()]
    if peaks.memory_tbps:
        rows.append({"peak": MEMORY, "value": f"{peaks.memory_tbps:g} TB/s"})
    table = table_of(rows, ("peak", "name"), ("value", "text"))
    return [Section("Peaks of the GPU", (f"{peaks.name or 'the GPU'}: {peaks.source}.",), table, detail=True)]
