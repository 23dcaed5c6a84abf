"""The metrics that are tables: one SQL module and one entry here each."""

from __future__ import annotations

from dataclasses import dataclass

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import query_rows
from molprof.analysis.figures.model import Table

SMALL_NS = 100_000
SMALL_COUNT = 1_000


@dataclass(frozen=True)
class Metric:
    """A table of the report.

    Attributes:
        name: key in the JSON's `tables`.
        title: heading of the rendered table.
        module: SQL module in the package `molprof`.
        sql: query over the module's public names; its columns' suffixes are their units.
        needs_run: only for a run that molprof captured.
    """

    name: str
    title: str
    module: str
    sql: str
    needs_run: bool = False


METRICS = (
    Metric(
        "steps",
        "Steps, as the engine that ran them marks them (tokens only where its mark tells their number)",
        "step_launches",
        "SELECT IFNULL(source, '(outside)') AS source, kind, steps, tokens, launches, graph_launches, kernels,"
        " gpu_ns, launches_per_step, launches_per_token"
        " FROM molprof_step_launch_summary ORDER BY steps = 0, source, kind",
    ),
    Metric(
        "step_latency",
        "Time of steps on the host, profiler's cost included",
        "step_latency",
        "SELECT measure, kind, count, mean_ns, p50_ns, p90_ns, p99_ns, longest_ns"
        " FROM molprof_step_latency ORDER BY measure, source, kind",
    ),
    Metric(
        "kernel_classes",
        "GPU work by class",
        "kernel_classes",
        "SELECT class, count, time_ns, time_ratio, names FROM molprof_class_summary ORDER BY time_ns DESC, class",
    ),
    Metric(
        "launch_calls",
        "Launching calls",
        "launches",
        "SELECT name, kind, count, time_ns, kernels, mean_delay_ns FROM molprof_launch_summary"
        " ORDER BY count DESC, name, kind",
    ),
    Metric(
        "graphs",
        "Graph launches",
        "graphs",
        "SELECT name, graph_launches, time_ns, kernels, kernels_per_graph, gpu_ns, mean_delay_ns"
        " FROM molprof_graph_summary ORDER BY graph_launches DESC, name",
    ),
    Metric(
        "idle_causes",
        "Why devices were idle (molprof queries idle_causes says what each cause means)",
        "idle_causes",
        "SELECT device, cause, count, time_ns, idle_ratio, longest_ns"
        " FROM molprof_idle_cause ORDER BY device, time_ns DESC, cause",
    ),
    Metric(
        "host_syncs",
        "Calls that make the CPU wait for the GPU",
        "host_syncs",
        "SELECT name, operator, count, time_ns, longest_ns FROM molprof_host_sync_summary"
        " ORDER BY time_ns DESC, name, operator LIMIT 20",
    ),
    Metric(
        "attention",
        "Attention kernels and operators (an operator's time includes those it calls)",
        "attention",
        "SELECT kind, name, count, time_ns, time_ratio FROM molprof_attention"
        " ORDER BY kind, time_ns DESC, name LIMIT 20",
    ),
    Metric(
        "masking",
        "Operations of the processor phase that can write a mask",
        "masking",
        "SELECT kind, name, count, time_ns FROM molprof_masking_candidate ORDER BY kind, time_ns DESC, name LIMIT 20",
        needs_run=True,
    ),
    Metric(
        "drift",
        "Coordinate blocks by junk and filler tokens (malformed ones have no junk)",
        "drift",
        "SELECT surplus AS junk_and_filler_tokens, blocks FROM molprof_surplus_histogram ORDER BY surplus",
        needs_run=True,
    ),
    Metric(
        "template_drift",
        "Coordinate blocks by drift: the template's FREE positions minus tokens that the coordinates need",
        "drift",
        "SELECT drift, blocks FROM molprof_drift_histogram WHERE drift IS NOT NULL ORDER BY drift",
        needs_run=True,
    ),
    Metric(
        "top_gpu_operations",
        "GPU work by name",
        "top_operations",
        "SELECT name, class, count, time_ns, time_ratio FROM molprof_top_gpu_operation"
        " ORDER BY time_ns DESC, name, class LIMIT 30",
    ),
    Metric(
        "top_cpu_operations",
        "CPU operators by own time (without the operators that they call)",
        "top_operations",
        "SELECT name, count, own_ns, time_ns FROM molprof_top_cpu_operation ORDER BY own_ns DESC, name LIMIT 30",
    ),
    Metric(
        "small_operations",
        "Small and frequent: mean below 100 µs, more than 1,000 times",
        "small_operations",
        "SELECT category, name, count, time_ns, mean_ns"
        f" FROM molprof_small_operations({SMALL_NS}, {SMALL_COUNT})"
        " ORDER BY count DESC, category, name LIMIT 20",
    ),
)


def read_tables(engine: Engine, has_run: bool) -> tuple[Table, ...]:
    """The table of every metric; without rows where a metric needs a run and there is none."""
    return tuple(_read(engine, metric, has_run) for metric in METRICS)


def _read(engine: Engine, metric: Metric, has_run: bool) -> Table:
    if metric.needs_run and not has_run:
        return Table(metric.name, metric.title, (), ())
    columns, rows = query_rows(engine, metric.module, metric.sql)
    return Table(metric.name, metric.title, columns, rows)
