"""Where the time difference between runs lies, as sections: parts by group with subtotals, and the ratios."""

from __future__ import annotations

from math import prod

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.model import Difference, TraceDifference
from molprof.analysis.compare.parts import GROUPS, by_group, in_order, part_label
from molprof.analysis.figures.run_model import Run
from molprof.common.document import Column, Section
from molprof.common.values import NOT_RECORDED, time_text

# More do not fit beside the labels.
_PER_TABLE = 3
_LARGEST = 3
# Of the difference; more in no part is worth a word.
_RESIDUAL_RATIO = 0.01
_SHARES = "percent: share of the whole difference; a part below 0 % works against it"
_FACTOR_LABELS = {"tokens": "tokens", "steps_per_token": "steps per token", "time_per_step": "time per step"}

Known = tuple[str, Difference]


def difference_sections(comparison: Comparison) -> list[Section]:
    """The unprofiled difference of every run that has one, then the recorded one of those that have only that."""
    others = comparison.labels[1:]
    known = [(label, item) for label, item in zip(others, comparison.differences, strict=True) if item is not None]
    missing = [label for label, item in zip(others, comparison.differences, strict=True) if item is None]
    title = f"Difference in unprofiled time from {comparison.labels[0]}"
    chunks = [known[start : start + _PER_TABLE] for start in range(0, len(known), _PER_TABLE)]
    sections = [_parts_section(title, chunk) for chunk in chunks]
    if missing:
        sections.append(Section("" if known else title, notes=tuple(f"{label}: {NOT_RECORDED}" for label in missing)))
    if known:
        sections.append(Section("", notes=tuple(_notes(comparison, known))))
    recorded = zip(others, comparison.trace_differences, strict=True)
    sections.extend(_recorded(comparison.labels[0], label, item) for label, item in recorded if item is not None)
    return sections


def _parts_section(title: str, known: list[Known]) -> Section:
    """One row per group and per part of a group; what is 0 in every run shown is left out."""
    items = [item for _, item in known]
    shown = [part for part in in_order(part for item in items for part in item.parts) if _any(items, [part])]
    rows = []
    for group, parts in by_group(shown).items():
        if len(parts) == 1:
            rows.append((part_label(parts[0]), *(_part_cell(item, parts[0]) for item in items)))
            continue
        rows.append((GROUPS[group], *(_cell(_sum(item, parts), item.wall_ns) for item in items)))
        for part in parts:
            label = part_label(part).removeprefix(f"{group}: ")
            rows.append((f"  {label}", *(_part_cell(item, part) for item in items)))
    rows.append(("in no part", *(_cell(item.residual_ns, item.wall_ns) for item in items)))
    rows.append(("all", *(_cell(item.wall_ns, item.wall_ns) for item in items)))
    largest = [_largest(label if len(known) > 1 else "", item) for label, item in known]
    columns = (Column("", "left"), *(Column(label) for label, _ in known))
    return Section(title, columns, tuple(rows), tuple(line for line in largest if line))


def _any(items: list[Difference], parts: list[str]) -> bool:
    return any(item.parts.get(part) for item in items for part in parts)


def _sum(item: Difference, parts: list[str]) -> int:
    return sum(item.parts.get(part, 0) for part in parts)


def _part_cell(item: Difference, part: str) -> str:
    # One run may have its phases divided by bounds and another not.
    return _cell(item.parts[part], item.wall_ns) if part in item.parts else ""


def _cell(part_ns: int, whole_ns: int) -> str:
    return f"{_signed(part_ns)} {_share(part_ns, whole_ns):>9}".rstrip() if whole_ns else _signed(part_ns)


def _signed(value_ns: int) -> str:
    return f"+{time_text(value_ns)}" if value_ns > 0 else time_text(value_ns)


def _share(part_ns: int, whole_ns: int) -> str:
    percent = round(100 * part_ns / whole_ns, 1)
    return f"{percent + 0.0:,.1f} %"  # no -0.0


def _largest(label: str, item: Difference) -> str:
    """The parts that matter most, whatever their sign."""
    parts = sorted((part for part in item.parts if item.parts[part]), key=lambda part: -abs(item.parts[part]))
    if not parts:
        return ""
    text = ", ".join(f"{part_label(part)} {_signed(item.parts[part])}" for part in parts[:_LARGEST])
    return f"{label}: largest parts: {text}" if label else f"largest parts: {text}"


def _notes(comparison: Comparison, known: list[Known]) -> list[str]:
    """The ratios, and what one must know to read the parts."""
    several = len(known) > 1
    notes = [
        f"{label}: {factors_text(item)}" if several else factors_text(item) for label, item in known if item.factors
    ]
    notes.extend(
        f"{label}: more than 1 % of the difference is in no part"
        for label, item in known
        if item.residual_ratio is not None and abs(item.residual_ratio) > _RESIDUAL_RATIO
    )
    if any(basis == "window" for _, item in known for basis in item.basis.values()):
        notes.append(
            "GPU busy, launch-bound and host sync: unprofiled time of the phase, divided as in the recorded window"
        )
    for label, item in known:
        if item.gpu_beyond_ns is not None and any(item.gpu_beyond_ns):
            beyond = ", ".join(time_text(value_ns) for value_ns in item.gpu_beyond_ns)
            notes.append(f"{label}: recorded GPU time that unprofiled steps have no room for: {beyond} (first, this)")
    if any(item.wall_ns for _, item in known):
        notes.append(_SHARES)
    extra = [_first_pass(label, report.run) for label, report in zip(comparison.labels, comparison.runs, strict=True)]
    if any(extra):
        noise = " (~: no more than the slowest timed pass)" if any(text.endswith(" ~") for text in extra) else ""
        known_extra = ", ".join(filter(None, extra))
        notes.append(f"beside all this: first pass (compiling, first use) minus median: {known_extra}{noise}")
    return notes


def factors_text(item: Difference) -> str:
    """The ratio of the times as a product."""
    product = " × ".join(f"{_FACTOR_LABELS[name]} {ratio:.3f}x" for name, ratio in item.factors.items())
    return f"time {prod(item.factors.values()):.3f}x = {product}"


def _first_pass(label: str, run: Run | None) -> str:
    if run is None or run.first_pass_extra_ns is None:
        return ""
    wall = run.wall_ns
    noise = wall.median is not None and wall.high is not None and wall.median + run.first_pass_extra_ns <= wall.high
    return f"{label} ~" if noise else f"{label} {_signed(run.first_pass_extra_ns)}"


def _recorded(first: str, label: str, item: TraceDifference) -> Section:
    """The difference of recorded spans: profiled, so never beside unprofiled times."""
    rows = [(_recorded_label(part), _cell(value, item.span_ns)) for part, value in item.parts.items() if value]
    if item.residual_ns:
        rows.append(("in no part", _cell(item.residual_ns, item.span_ns)))
    rows.append(("all", _cell(item.span_ns, item.span_ns)))
    note = (
        "recorded, so with the profiler's cost; from each device's first work to the end of its last, "
        f"summed over devices: {item.devices[0]} and {item.devices[1]}"
    )
    notes = (note, _SHARES) if item.span_ns else (note,)
    columns = (Column("", "left"), Column(label))
    return Section(f"Difference in recorded (profiled) span from {first}", columns, tuple(rows), notes)


def _recorded_label(part: str) -> str:
    return f"idle: {part.removeprefix('idle.')}" if part.startswith("idle.") else part
