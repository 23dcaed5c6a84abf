"""Tables of a report: one SQL module and one entry here each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from math import fsum
from operator import itemgetter
from statistics import median, median_low
from typing import Any

from msgspec.structs import replace

from molprof.analysis.figures.figure import TableQuery
from molprof.analysis.figures.model import FigureTable
from molprof.analysis.trace_processor.package import Query

# What becomes of the columns of positions that are folded; None where none has a value. `sum` of ratios would depend
# on the version of Python.
_FOLDED: Mapping[str, Callable[[list[Any]], Any]] = {
    "count": sum, "p50_ns": median_low, "shortest_ns": min, "longest_ns": max, "p50_gap_ns": median_low,
    "time_ratio": fsum,
}  # fmt: skip


def _ranked(order: Callable[[tuple[Any, ...]], Any]) -> Callable[[FigureTable], FigureTable]:
    """Return a function that keeps the first 20 rows in an order."""
    return lambda table: replace(table, rows=tuple(sorted(table.rows, key=order)[:20]))


def _folded(table: FigureTable) -> FigureTable:
    """Return the positions of each graph, with blocks that repeat as one, such as the layers of a model."""
    from molprof.analysis.figures.sequence import blocks  # heavy

    rows = []
    for _, group in groupby(table.to_json(), itemgetter("graph")):
        positions = list(group)
        for block in blocks([position["name"] for position in positions]):
            for index in range(block.start, block.start + block.length):
                alike = positions[index : block.stop : block.length]
                columns = {name: [item[name] for item in alike if item[name] is not None] for name in _FOLDED}
                row = {
                    **alike[0],
                    "alike": len(alike),
                    "period": block.length if block.times > 1 else 0,
                    **{name: fold(columns[name]) if columns[name] else None for name, fold in _FOLDED.items()},
                }
                rows.append(tuple(row.values()))
    return replace(table, rows=tuple(rows))


STEPS = TableQuery(
    "steps",
    "Steps by source and kind (tokens only if the annotation has their number)",
    "SELECT IFNULL(source, '(outside)') AS source, kind, steps, tokens, launches, graph_launches, kernels, gpu_ns,"
    " syncs, launches_per_step, launches_per_token"
    " FROM molprof_step_launch_summary ORDER BY steps = 0, source, kind",
    "step_launches",
)
# Times of steps on the host, and of their GPU work.
_MEASURES = ("host", "gpu")
# A first step is unlike the rest beyond their longest or shortest by this factor, where there are so many.
_UNLIKE, _LEAST_STEPS = 1.25, 3


def _step_lengths(table: FigureTable) -> FigureTable:
    """Return a row for each kind of step, and for its time on the host and on the GPU."""
    times: dict[tuple[Any, ...], list[int]] = {}
    steps: Any = table.to_json()
    for row in steps:
        for measure in _MEASURES:
            if row[f"{measure}_ns"] is not None:
                times.setdefault((row["kind"], row["is_inferred"], measure), []).append(row[f"{measure}_ns"])
    rows = tuple(
        (*key, len(ns), median(ns), min(ns), max(ns), ns[0], int(_is_unusual(ns))) for key, ns in times.items()
    )
    return replace(
        table,
        columns=(
            "kind", "is_inferred", "measure", "steps", "median_ns", "shortest_ns", "longest_ns", "first_ns",
            "first_is_unlike",
        ),
        rows=rows,
    )  # fmt: skip


def _is_unusual(times: list[int]) -> bool:
    """Return True if the first time is far from all others."""
    first, *rest = times
    return len(times) >= _LEAST_STEPS and (first > _UNLIKE * max(rest) or _UNLIKE * first < min(rest))


_SMALL = (
    "SELECT category, name, count, time_ns, 1.0 * time_ns / count AS mean_ns FROM molprof_{}_total"
    " WHERE 1.0 * time_ns / count < 100000 AND count > 1000"
)
TABLES = (
    STEPS,
    TableQuery(
        "step_tokens",
        "Tokens of steps that are known within bounds",
        "SELECT source, kind, COUNT() AS steps, SUM(least_tokens) AS least_tokens, SUM(most_tokens) AS most_tokens"
        " FROM molprof_any_step WHERE tokens IS NULL AND most_tokens IS NOT NULL"
        " GROUP BY source, kind ORDER BY source, kind",
        "steps",
        optional=True,
    ),
    TableQuery(
        "step_lengths",
        "",
        "INCLUDE PERFETTO MODULE molprof.steps;\n"
        "SELECT step.kind, step.kind_is_inferred AS is_inferred, step.dur AS host_ns, work.gpu_span_ns AS gpu_ns"
        " FROM molprof_any_step AS step JOIN molprof_step_launch AS work ON work.step_id = step.id"
        " WHERE step.kind IS NOT 'idle' ORDER BY step.ts, step.id",
        "step_launches",
        optional=True,
        convert=_step_lengths,
    ),
    TableQuery(
        "step_latency",
        "Step latency on the host, including the profiler's cost",
        "SELECT measure, kind, count, mean_ns, p50_ns, p90_ns, p99_ns, longest_ns"
        " FROM molprof_step_latency ORDER BY measure, source, kind",
    ),
    TableQuery(
        "engine_phases",
        "Phases of the engine or program on the host, including the profiler's cost (self time: without phases inside)",
        "SELECT program, phase, count, time_ns, time_ratio, own_ns, p50_ns, p90_ns, p99_ns, longest_ns"
        " FROM molprof_phase_time ORDER BY program, own_ns IS NULL, own_ns DESC, phase",
        "phase_times",
        needs_run=None,
    ),
    TableQuery(
        "logits_processors",
        "Logits processors by file and line of their call (a trace has no names of their classes)",
        "SELECT source, count, time_ns, p50_ns, p90_ns, p99_ns, longest_ns FROM molprof_logits_processor"
        " ORDER BY time_ns DESC, source",
    ),
    TableQuery(
        "mask_times",
        "Masks of constrained decoding, per step and per request in a step (with forwards, to compare)",
        "SELECT measure, per, count, time_ns, p50_ns, p90_ns, p99_ns, longest_ns FROM molprof_mask_time"
        " ORDER BY per DESC, measure",
        "masks",
        optional=True,
        of_masks=True,
    ),
    TableQuery(
        "mask_mix",
        "Steps of an engine by sequences and masks",
        "SELECT kind, sequences, masks, unconstrained, steps, mean_ns, mean_fill_ns, mean_mask_ns"
        " FROM molprof_mask_mix ORDER BY steps DESC, kind, sequences, masks LIMIT 20",
        "masks",
        optional=True,
        of_masks=True,
    ),
    TableQuery(
        "mask_copies",
        "Copies of masks to the GPU, and of what masks read from it",
        "SELECT phase, direction, host_memory, COUNT() AS count, SUM(dur) AS time_ns, SUM(bytes) AS bytes"
        " FROM molprof_mask_copy GROUP BY phase, direction, host_memory ORDER BY time_ns DESC, phase, direction",
        "masks",
        optional=True,
        of_masks=True,
    ),
    TableQuery(
        "kernel_classes",
        "GPU work by class",
        "SELECT class, count, time_ns, time_ratio, names FROM molprof_class_summary ORDER BY time_ns DESC, class",
    ),
    TableQuery(
        "class_locations",
        "",
        "SELECT class, location, count, time_ns FROM (SELECT class, location, count, MAX(time_ns) AS time_ns FROM ("
        "SELECT launched.class, COALESCE(operator, source, module) AS location,"
        " SUM(launched.count) AS count, SUM(launched.time_ns) AS time_ns"
        " FROM molprof_launched_work AS launched LEFT JOIN molprof_call_location AS found USING (location_id)"
        " GROUP BY class, location ORDER BY class, location) GROUP BY class) WHERE location NOT NULL ORDER BY class",
        "call_locations",
    ),
    TableQuery(
        "exposed",
        "GPU work concurrent with other work of its device (exposed: nothing of another class, or other kernel, runs)",
        "SELECT 'class' AS kind, class AS name, count, busy_ns, exposed_ns, hidden_ns, hideable_ns, other_class,"
        " other_class_ns"
        " FROM molprof_exposed_class WHERE"
        " (SELECT SUM(time_ns) FROM molprof_exposed_class) > (SELECT SUM(busy_ns) FROM molprof_device)"
        " UNION ALL SELECT 'kernel', name, count, busy_ns, exposed_ns, hidden_ns, NULL, NULL, NULL FROM"
        " (SELECT * FROM molprof_exposed_kernel WHERE hidden_ns > 0 ORDER BY hidden_ns DESC, name LIMIT 20)"
        " ORDER BY kind, exposed_ns DESC, name",
    ),
    TableQuery(
        "fused_chains",
        "Consecutive kernels that one library kernel can replace, and those kernels (saved: at most)",
        "SELECT chain, count, time_ns, saved_ns, time_ratio, fused_count, fused_ns, fused_kernel, library"
        " FROM molprof_fused_chain ORDER BY saved_ns DESC, chain",
    ),
    TableQuery(
        "launch_calls",
        "Launch calls",
        "SELECT name, kind, count, time_ns, kernels, mean_delay_ns FROM molprof_launch_summary"
        " ORDER BY count DESC, name, kind",
        "launches",
    ),
    TableQuery(
        "graphs",
        "Graph launches",
        "SELECT name, graph_launches, time_ns, kernels, kernels_per_graph, gpu_ns, mean_delay_ns"
        " FROM molprof_graph_summary ORDER BY graph_launches DESC, name",
    ),
    TableQuery(
        "idle_causes",
        "Causes of device idle time (molprof query list idle_causes explains them)",
        "SELECT device, cause, count, time_ns, idle_ratio, longest_ns"
        " FROM molprof_idle_cause WHERE position = 'between' ORDER BY device, time_ns DESC, cause",
    ),
    TableQuery(
        "idle_edges",
        "The same before a device's first work and after its last, as long as anything is recorded",
        "SELECT device, position, cause, time_ns FROM molprof_idle_cause WHERE position != 'between'"
        " ORDER BY device, position DESC, time_ns DESC, cause",
        "idle_causes",
    ),
    TableQuery(
        "host_syncs",
        "Host syncs (calls that make the CPU wait for the GPU)",
        "SELECT name, operator, count, time_ns, longest_ns FROM molprof_host_sync_summary"
        " ORDER BY time_ns DESC, name, operator LIMIT 20",
    ),
    TableQuery(
        "attention",
        "Attention kernels and operators (operators include those that they call)",
        "SELECT 'operator' AS kind, name, count, time_ns, NULL AS time_ratio FROM molprof_attention_operator",
        "host_totals",
        more=Query(
            "top_operations",
            "SELECT 'kernel' AS kind, name, count, time_ns, time_ratio FROM molprof_top_gpu_operation"
            " WHERE class = 'attention'",
        ),
        convert=_ranked(lambda row: (row[0], -row[3], row[1])),
    ),
    TableQuery(
        "masking",
        "Masking operations of the processor phase",
        "SELECT kind, name, count, time_ns FROM molprof_masking_candidate ORDER BY kind, time_ns DESC, name LIMIT 20",
        needs_run=True,
    ),
    TableQuery(
        "drift",
        "Coordinate blocks by junk and filler tokens (malformed blocks have no junk)",
        "SELECT surplus AS junk_and_filler_tokens, blocks FROM molprof_surplus_histogram ORDER BY surplus",
        needs_run=True,
    ),
    TableQuery(
        "runaway",
        "Tokens of answers that lead nowhere, by cause",
        "SELECT cause, COUNT() AS runs, COUNT(DISTINCT sequence) AS answers, SUM(tokens) AS tokens,"
        " 1.0 * SUM(tokens) / (SELECT COUNT() FROM molprof_token) AS token_ratio, MAX(tokens) AS longest_run"
        " FROM molprof_runaway GROUP BY cause ORDER BY tokens DESC, cause",
        needs_run=True,
        optional=True,
    ),
    TableQuery(
        "template_drift",
        "Coordinate blocks by drift (FREE positions of the template minus tokens that the coordinate needs)",
        "SELECT drift, blocks FROM molprof_drift_histogram WHERE drift IS NOT NULL ORDER BY drift",
        "drift",
        needs_run=True,
    ),
    TableQuery(
        "top_gpu_operations",
        "GPU work by name",
        "INCLUDE PERFETTO MODULE molprof.exposed;\n"
        "SELECT name, class, count, time_ns, time_ratio, exposed_ns FROM molprof_top_gpu_operation"
        " LEFT JOIN (SELECT name, class, exposed_ns FROM molprof_exposed_kernel) USING (name, class)"
        " ORDER BY time_ns DESC, name, class LIMIT 30",
        "top_operations",
    ),
    TableQuery(
        "top_cpu_operations",
        "CPU operators by self time",
        "SELECT name, count, own_ns, time_ns FROM molprof_top_cpu_operation ORDER BY own_ns DESC, name LIMIT 30",
        "cpu_operations",
    ),
    TableQuery(
        "operator_time",
        "",
        "SELECT * FROM (SELECT SUM(count) AS count, SUM(own_ns) AS time_ns FROM molprof_top_cpu_operation)"
        " WHERE count > 0",
        "cpu_operations",
        optional=True,
    ),
    TableQuery(
        "small_operations",
        "Short and frequent operations (mean below 100 µs, more than 1,000 times)",
        _SMALL.format("host"),
        "host_totals",
        more=Query("work_totals", _SMALL.format("work")),
        convert=_ranked(lambda row: (-row[2], row[0], row[1])),
    ),
    TableQuery(
        "replayed_graphs",
        "Graphs and their replays (p50, shortest and longest: from the first work of a replay to the end of its last)",
        "SELECT graph, graph_id, replays, kernels, memory_operations, p50_ns, shortest_ns, longest_ns, mean_gpu_ns,"
        " mean_gaps_ns FROM molprof_replayed_graph ORDER BY graph",
        "graph_nodes",
    ),
    TableQuery(
        "graph_positions",
        "Work of graphs by position, repeats folded (molprof query list graph_nodes has each position)",
        "INCLUDE PERFETTO MODULE molprof.kernel_classes;\n"
        "SELECT position.graph, position.position, 1 AS alike, 0 AS period, position.name, class.class, position.count,"
        " position.p50_ns, position.shortest_ns, position.longest_ns, position.p50_gap_ns,"
        " CAST(position.time_ns AS DOUBLE) / NULLIF(SUM(position.time_ns) OVER of_graph, 0) AS time_ratio"
        " FROM molprof_graph_position AS position"
        " LEFT JOIN molprof_work_class AS class ON class.category = position.category AND class.name = position.name"
        " WINDOW of_graph AS (PARTITION BY position.graph)"
        " ORDER BY position.graph, position.position",
        "graph_nodes",
        convert=_folded,
    ),
)
