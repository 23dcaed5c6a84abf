"""Tables of what processors.py and decoding.py measured, in Markdown, from their JSON. Runs without torch.

python benchmarks/shown.py processors-qwen.json decoding-qwen.json
python benchmarks/shown.py FILE.json --write              into docs/, as the script that measured would
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from records import (
    DECODING,
    PROCESSORS,
    Cost,
    Costs,
    CostSettings,
    Way,
    Ways,
    WaySettings,
    read_json,
    write_record,
)
from shared import parser, progress, publish, table

from molprof.analysis.render.markdown import literal
from molprof.common.errors import MolprofError, TraceError
from molprof.common.manifest import Environment
from molprof.common.typed_json import read_typed
from molprof.common.values import (
    bytes_text,
    count_text,
    counted,
    factor_text,
    number_text,
    percent_text,
    time_text,
)
from molprof.profiler.molecules.smiles import has_rdkit

COST_MARKS = "<!-- benchmarks/processors.py writes from here -->", "<!-- to here -->"
COORDINATE_MARKS = "<!-- benchmarks/quality.py writes from here -->", "<!-- to there -->"
WAY_MARKS = "<!-- benchmarks/decoding.py -->", "<!-- end -->"
NOTHING = "-"
# A forced token needs no step; a chunk with it costs a little more than a step without.
FORCED_RUNS_RATIO = 1.05
_COST_HEADINGS = (
    "processor", "time", "forward", "share of a step", "per token", "set-up per molecule", "operators per step",
    "tokens", "junk", "filler", "malformed", "valid",
)  # fmt: skip
_WAY_HEADINGS = (
    "preset", "LP", "way", "tokens", "steps", "steps on finished rows", "forced", "time over no LP", "at most",
    "time over the default", "time over the same LP, step by step",
)  # fmt: skip


def finish(record: Costs | Ways, options: argparse.Namespace) -> None:
    """Keep what was measured, put its tables into their page, or print them."""
    if options.output is not None:
        write_record(options.output, record)
    if options.output is None or options.write:
        show(record, options.write)


def show(record: Costs | Ways, write: bool) -> None:
    """Print the tables of a file, or put them into their page."""
    if isinstance(record, Ways):
        publish(way_tables(record), write, "decoding.md", WAY_MARKS)
        return
    publish(cost_tables(record, "###"), write, "processors.md", COST_MARKS)
    if has_rdkit():
        publish(coordinate_tables(record, "###"), write, "processors.md", COORDINATE_MARKS)
    else:
        progress("no table of coordinates: bonds need the package rdkit, which is not installed")


def machine(where: Environment) -> str:
    """Hardware and versions in a line."""
    gpu = "" if where.gpu is None else f"{where.gpu}, {bytes_text(where.gpu_memory_bytes)}; driver {where.driver}, "
    hardware = f"{gpu}CUDA {where.cuda}, cuDNN {where.cudnn}" if where.gpu else where.cpu
    return literal(
        f"{hardware}; {counted(where.cores, 'core')}, {counted(where.threads, 'thread')}; torch {where.torch}, "
        f"transformers {where.transformers}"
    )


def cost_tables(record: Costs, heading: str) -> str:
    """What each processor costs, a table for each preset below a heading of its own."""
    asked = record.settings
    head = (
        f"{_work(asked)}, greedy, {asked.dtype}, {counted(asked.rounds, 'round')}; {machine(record.environment)}; "
        f"{record.date[:10]}."
    )
    parts = [head if record.note is None else f"{head}\n{literal(record.note)}"]
    for model, costs in record.models.items():
        base = costs[0]
        rows = [_cost(cost, base) for cost in costs]
        parts.append(f"{heading} {literal(model)}\n\n{table(_COST_HEADINGS, rows, left=1)}")
        left_out = record.left_out.get(model, {})
        parts += (
            ["\n".join(f"- {literal(f'{name} was left out: {why}')}" for name, why in left_out.items())]
            if left_out
            else []
        )
    return "\n\n".join(parts)


def coordinate_tables(record: Costs, heading: str) -> str:
    """What each processor does to the coordinates, as `cost_tables`. Needs RDKit."""
    import quality

    parts = [f"{_work(record.settings)}, greedy."]
    for model, costs in record.models.items():
        smiles = [answer.smiles for answer in costs[0].answers]
        texts = {cost.name: [answer.text for answer in cost.answers] for cost in costs}
        parts.append(f"{heading} {literal(model)}\n\n{table(quality.HEADINGS, quality.rows(smiles, texts))}")
    return "\n\n".join(parts)


def _work(asked: CostSettings | WaySettings) -> str:
    size = f"size {asked.size}, " if asked.size else ""
    return f"{size}{counted(asked.count, 'molecule')} in batches of {asked.batch_size}"


def _cost(cost: Cost, base: Cost) -> tuple[str, ...]:
    def ratio(values: Sequence[float], others: Sequence[float]) -> str:
        return factor_text(statistics.median(own / other for own, other in zip(values, others, strict=True)))

    def middle(values: Sequence[float]) -> float:
        return statistics.median(values)

    rounds = cost.rounds
    spent = (NOTHING,) * 4
    if cost is not base:
        spent = (
            percent_text(middle([item.processor_ratio for item in rounds])),
            time_text(middle([item.phases_ns["processor"] / item.row_steps for item in rounds])),
            time_text(middle([item.phases_ns["template"] for item in rounds]) / len(cost.answers)),
            number_text(cost.operators_per_step),
        )
    return (
        literal(cost.name),
        ratio([item.time_ns for item in rounds], [item.time_ns for item in base.rounds]),
        ratio([item.forward_ns for item in rounds], [item.forward_ns for item in base.rounds]),
        *spent,
        count_text(sum(cost.kinds.values())),
        *(count_text(cost.kinds.get(letter, 0)) for letter in "jl"),
        count_text(cost.malformed_blocks),
        _valid(cost),
    )


def _valid(cost: Cost) -> str:
    checked = [answer.valid for answer in cost.answers if answer.valid is not None]
    unchecked = len(cost.answers) - len(checked)
    return f"{sum(checked)} of {len(checked)}" + (f", {unchecked} not checked" if unchecked else "")


def way_tables(record: Ways) -> str:
    asked = record.settings
    head = (
        f"{_work(asked)}, {asked.kv_cache} cache, greedy, "
        f"{asked.dtype}; {machine(record.environment)}; load {record.load:.0f}; {record.date[:10]}. Ratios of "
        f"{record.clock}, median of {asked.repeats} interleaved passes (lowest to highest). Default: no LP, dynamic "
        "cache, input order. Forced: share of the tokens that were appended without a step of their own; at most: "
        f"{FORCED_RUNS_RATIO} x (1 - that share)."
    )
    rows = [_way(model, way, known) for model, known in record.models.items() for way in known]
    return f"{head}\n\n{table(_WAY_HEADINGS, rows, left=3)}"


def unconstrained(ways: Sequence[Way]) -> tuple[Way, Way]:
    """The default, and no LP step by step with the cache of the other ways, which is the default if it is dynamic."""
    return ways[0], next((way for way in ways if way.processor is None and way.way == "step by step"), ways[0])


def ratios(own: Way, base: Way) -> list[float]:
    """Ratios of passes that ran one after the other."""
    return [one / other for one, other in zip(own.times_ns, base.times_ns, strict=True)]


def forced_limit(way: Way) -> float:
    """The most that forced runs may take of the time without an LP."""
    return FORCED_RUNS_RATIO * way.busy_steps / way.tokens


def _way(model: str, way: Way, known: Sequence[Way]) -> tuple[str, ...]:
    default, plain = unconstrained(known)
    own = next((item for item in known if (item.processor, item.way) == (way.processor, "step by step")), default)
    return (
        literal(model),
        literal(way.processor or "no LP"),
        literal(way.way),
        count_text(way.tokens),
        count_text(way.steps),
        count_text(way.row_steps - way.busy_steps),
        percent_text(1 - way.busy_steps / way.tokens) if way.forced_runs else NOTHING,
        _spread(ratios(way, plain)),
        factor_text(forced_limit(way)) if way.forced_runs else NOTHING,
        _spread(ratios(way, default)),
        _spread(ratios(way, own)),
    )


def _spread(values: Sequence[float]) -> str:
    return f"{factor_text(statistics.median(values))} ({factor_text(min(values))} to {factor_text(max(values))})"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--write", action="store_true", help="put the tables into their page instead of printing them")
    asked = options.parse_args()
    for path in asked.files:
        raw = read_json(path)
        kind: Any = {PROCESSORS: Costs, DECODING: Ways}.get(raw.get("record"))
        if kind is None:
            raise TraceError(f"{path} was written by neither processors.py nor decoding.py")
        show(read_typed(raw, kind, path.name), asked.write)


if __name__ == "__main__":
    try:
        main()
    except MolprofError as problem:
        raise SystemExit(f"error: {problem}") from None
