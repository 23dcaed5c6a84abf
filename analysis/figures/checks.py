"""Checks: sums that must hold, of figures counted in two ways; and calls that can be told apart."""

from __future__ import annotations

from molprof.analysis.figures.counts import Counts
from molprof.analysis.figures.model import STACK_CATEGORY, Check, TraceFigures
from molprof.analysis.figures.run_model import Run
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row
from molprof.common.errors import TraceError
from molprof.common.manifest import Manifest

AMBIGUOUS = Query("work_calls", "SELECT COUNT() AS numbers, MIN(correlation) AS least FROM molprof_ambiguous_call")
_GPU = Query(
    "phase_work",
    """
SELECT
  (SELECT IFNULL(SUM(dur), 0) FROM slice WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')) AS all_ns,
  (SELECT IFNULL(SUM(gpu_ns), 0) FROM molprof_phase_summary) AS phases_ns
""",
)
_BOUND = Query(
    "phase_bound",
    """
SELECT
  (SELECT IFNULL(SUM(dur), 0) FROM molprof_phase) AS host_ns,
  (SELECT SUM(gpu_busy_ns) + SUM(sync_idle_ns) + SUM(launch_ns) FROM molprof_phase_bound) AS parts_ns
""",
)
_TOKENS = Query(
    "tokens",
    """
INCLUDE PERFETTO MODULE molprof.phases;
SELECT
  (SELECT COUNT() FROM molprof_token) AS arrays,
  (SELECT COUNT() FROM slice WHERE category = 'molprof.token') AS slices,
  (
    SELECT COUNT()
    FROM molprof_token AS token
    JOIN molprof_step AS step
      ON step.batch = token.batch AND step.step = token.step
  ) AS in_recorded_steps
""",
)


def trace_checks(trace: TraceFigures, counts: Counts) -> tuple[Check, ...]:
    events = sum(
        count for category, count in trace.events_by_category.items() if trace.stacks or category != STACK_CATEGORY
    )
    left_out = "" if trace.stacks else " (Python stacks left out)"
    kernels = _check(
        "kernels",
        "kernel events in the file = kernels with a call + kernels without",
        trace.events_by_category.get("kernel", 0),
        counts.kernels_with_call + counts.kernels_without_call,
    )
    text = f"events in the file{left_out} = slices in the trace processor"
    return (_check("events", text, events, events - trace.lost_events), kernels)


def run_checks(engine: TraceProcessor, run: Run, manifest: Manifest) -> tuple[Check, ...]:
    gpu, tokens, bound = (query_row(engine, query) for query in (_GPU, _TOKENS, _BOUND))
    made = run.generated_tokens
    unfinished = "tokens in the manifest = tokens of unfinished rows, summed over steps"
    in_steps = "token slices = tokens of the recorded steps"
    junk = "junk and filler tokens in the manifest = in the trace"
    surplus = sum(molecule.kinds.count("j") + molecule.kinds.count("l") for molecule in manifest.molecules)
    checks = [
        _check("gpu_time", "GPU time = phases + outside any phase, ns", gpu["all_ns"], gpu["phases_ns"]),
        _check("tokens", "tokens in the manifest = tokens in the trace", made, tokens["arrays"]),
        _check("unfinished_rows", unfinished, made, _of_unfinished_rows(manifest)),
        _check("token_slices", in_steps, tokens["slices"], tokens["in_recorded_steps"]),
    ]
    if run.of_molecules:
        checks.append(_check("kinds", junk, surplus, run.junk_tokens + run.filler_tokens))
    if (masked := run.masked) is not None and masked.own is not None:
        text = "masked logits that molprof counted = that the processor counted"
        checks.append(_check("masked_logits", text, masked.total, masked.own))
    if bound["parts_ns"] is not None:
        text = "phase time = GPU busy + host syncs + launching, ns"
        checks.append(_check("phase_bound", text, bound["host_ns"], bound["parts_ns"]))
    if run.wall_ns.median is not None:
        phases_ns = sum(phase.wall_ns or 0 for phase in run.phases.values())
        text = "unprofiled wall time = sum of its phases, ns"
        checks.append(_check("wall_time", text, run.wall_ns.median, phases_ns, tolerance_ratio=0.01))
    return tuple(checks)


def _of_unfinished_rows(manifest: Manifest) -> int:
    """Tokens of unfinished rows, step by step: one each, or as many as the loop appended."""
    total = 0
    for batch, steps in enumerate(manifest.steps_per_batch):
        rows = [molecule for molecule in manifest.molecules if molecule.batch == batch]
        # A manifest may claim any number of steps, but no row is unfinished beyond these.
        for step in range(min(steps, max((molecule.busy_steps for molecule in rows), default=0))):
            going = [molecule for molecule in rows if molecule.busy_steps > step]
            total += sum(1 if molecule.step_tokens is None else molecule.step_tokens[step] for molecule in going)
    return total


def _check(name: str, text: str, left: int, right: int, tolerance_ratio: float = 0.0) -> Check:
    return Check(name, text, left, right, tolerance_ratio, agree(left, right, tolerance_ratio))


def agree(left: int, right: int, tolerance_ratio: float) -> bool:
    """Whether both sides are equal, up to `tolerance_ratio` of the left one."""
    return abs(left - right) <= tolerance_ratio * abs(left)


def refuse_ambiguous(engine: TraceProcessor, path: str) -> None:
    """Raise TraceError for a trace merged from several whose calls cannot be told apart.

    The engine must know the SQL package.
    """
    found = query_row(engine, AMBIGUOUS)
    if found["numbers"]:
        what = f"{found['numbers']:,} correlation numbers, such as {found['least']}, are of several calls"
        raise TraceError(
            f"{path}: {what}: it was merged from several traces, and which call started which kernel cannot be told",
            hint="read the separate traces with molprof ranks, or merge them with process numbers that begin with the"
            " rank, such as rank3_1234",
        )
