"""Tables of a report: one SQL module and one entry here each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_rows
from molprof.analysis.figures.model import Table

SMALL_NS = 100_000
SMALL_COUNT = 1_000


@dataclass(frozen=True)
class TableQuery:
    """A table of the report.

    Attributes:
        name: key in the JSON's `tables`.
        title: heading of the rendered table.
        query: its columns' suffixes are their units.
        needs_run: only for a run that molprof captured.
        shown: people see it; else it only holds what a figure is read from.
    """

    name: str
    title: str
    query: Query
    needs_run: bool = False
    shown: bool = True


STEPS = TableQuery(
    "steps",
    "Steps by source and kind (tokens only where the annotation tells their number)",
    Query(
        "step_launches",
        "SELECT IFNULL(source, '(outside)') AS source, kind, steps, tokens, launches, graph_launches, kernels,"
        " gpu_ns, launches_per_step, launches_per_token"
        " FROM molprof_step_launch_summary ORDER BY steps = 0, source, kind",
    ),
)
TABLES = (
    STEPS,
    TableQuery(
        "step_latency",
        "Step latency on the host, including the profiler's cost",
        Query(
            "step_latency",
            "SELECT measure, kind, count, mean_ns, p50_ns, p90_ns, p99_ns, longest_ns"
            " FROM molprof_step_latency ORDER BY measure, source, kind",
        ),
    ),
    TableQuery(
        "kernel_classes",
        "GPU work by class",
        Query(
            "kernel_classes",
            "SELECT class, count, time_ns, time_ratio, names FROM molprof_class_summary ORDER BY time_ns DESC, class",
        ),
    ),
    TableQuery(
        "launch_calls",
        "Launch calls",
        Query(
            "launches",
            "SELECT name, kind, count, time_ns, kernels, mean_delay_ns FROM molprof_launch_summary"
            " ORDER BY count DESC, name, kind",
        ),
    ),
    TableQuery(
        "graphs",
        "Graph launches",
        Query(
            "graphs",
            "SELECT name, graph_launches, time_ns, kernels, kernels_per_graph, gpu_ns, mean_delay_ns"
            " FROM molprof_graph_summary ORDER BY graph_launches DESC, name",
        ),
    ),
    TableQuery(
        "idle_causes",
        "Causes of device idle time (molprof queries idle_causes explains them)",
        Query(
            "idle_causes",
            "SELECT device, cause, count, time_ns, idle_ratio, longest_ns"
            " FROM molprof_idle_cause ORDER BY device, time_ns DESC, cause",
            "any",
        ),
    ),
    TableQuery(
        "host_syncs",
        "Host syncs (calls that make the CPU wait for the GPU)",
        Query(
            "host_syncs",
            "SELECT name, operator, count, time_ns, longest_ns FROM molprof_host_sync_summary"
            " ORDER BY time_ns DESC, name, operator LIMIT 20",
        ),
    ),
    TableQuery(
        "attention",
        "Attention kernels and operators (operators include those that they call)",
        Query(
            "attention",
            "SELECT kind, name, count, time_ns, time_ratio FROM molprof_attention"
            " ORDER BY kind, time_ns DESC, name LIMIT 20",
        ),
    ),
    TableQuery(
        "masking",
        "Masking operations of the processor phase",
        Query(
            "masking",
            "SELECT kind, name, count, time_ns FROM molprof_masking_candidate"
            " ORDER BY kind, time_ns DESC, name LIMIT 20",
        ),
        needs_run=True,
    ),
    TableQuery(
        "drift",
        "Coordinate blocks by junk and filler tokens (malformed blocks have no junk)",
        Query(
            "drift", "SELECT surplus AS junk_and_filler_tokens, blocks FROM molprof_surplus_histogram ORDER BY surplus"
        ),
        needs_run=True,
    ),
    TableQuery(
        "template_drift",
        "Coordinate blocks by drift (FREE positions of the template minus tokens that the coordinate needs)",
        Query("drift", "SELECT drift, blocks FROM molprof_drift_histogram WHERE drift IS NOT NULL ORDER BY drift"),
        needs_run=True,
    ),
    TableQuery(
        "top_gpu_operations",
        "GPU work by name",
        Query(
            "top_operations",
            "SELECT name, class, count, time_ns, time_ratio FROM molprof_top_gpu_operation"
            " ORDER BY time_ns DESC, name, class LIMIT 30",
        ),
    ),
    TableQuery(
        "top_cpu_operations",
        "CPU operators by self time",
        Query(
            "top_operations",
            "SELECT name, count, own_ns, time_ns FROM molprof_top_cpu_operation ORDER BY own_ns DESC, name LIMIT 30",
        ),
    ),
    TableQuery(
        "small_operations",
        "Short and frequent operations (mean below 100 µs, more than 1,000 times)",
        Query(
            "small_operations",
            "SELECT category, name, count, time_ns, mean_ns"
            f" FROM molprof_small_operations({SMALL_NS}, {SMALL_COUNT})"
            " ORDER BY count DESC, category, name LIMIT 20",
        ),
    ),
)


def read_tables(engine: Engine, tables: Iterable[TableQuery], has_run: bool) -> tuple[Table, ...]:
    """The tables; without rows where one needs a run and there is none."""
    return tuple(_read(engine, table, has_run) for table in tables)


def _read(engine: Engine, table: TableQuery, has_run: bool) -> Table:
    columns, rows = query_rows(engine, table.query) if has_run or not table.needs_run else ((), ())
    return Table(table.name, table.title, columns, rows)
