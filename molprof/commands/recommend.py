"""`molprof bench recommend`: the fastest valid configuration that was measured."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.command import Command
from molprof.commands.options import TRACE, Result, engine_options, note, result_options
from molprof.common.errors import UsageError


@click.command("recommend", cls=Command)
@click.argument("file", type=click.Path(path_type=Path, readable=False))
@click.option("--trace", type=TRACE, metavar="TRACE", help="Trace that bounds the gain of each change (Amdahl).")
@result_options()
@engine_options
def command(file: Path, trace: Path | None, result: Result, native_path: str | None) -> None:
    """Recommend the fastest valid configuration in FILE for each machine, model, processor and batch size.

    Also prints its speed over the default (sdpa, dynamic cache, not compiled) with the confidence, the speed of each
    single change, and why other configurations were rejected. A configuration is valid if every process succeeded, and
    as many answers are valid as with the default.

    \b
    Examples:
      molprof bench recommend bench.jsonl
      molprof bench recommend bench.jsonl --trace qwen-lp.json.gz
    """
    result.check([file, *filter(None, [trace])])
    from molprof.analysis.reader.source import is_trace

    if file.is_dir() or (file.exists() and is_trace(file)):
        what = "a folder" if file.is_dir() else "a trace"
        raise UsageError(
            f"{file} is {what}, and bench recommend reads the results of a benchmark",
            hint="molprof bench matrix -o bench.jsonl, then molprof bench recommend bench.jsonl",
        )
    from molprof.analysis.bench.recommend import read_bounds, recommend
    from molprof.analysis.documents.advice import advice_document
    from molprof.api import load
    from molprof.common.bench_records import read_results

    results = read_results(file)
    note(*results.notes)
    advice = recommend(results)
    bounds = None if trace is None else load(trace, native_path=native_path).read(read_bounds)
    result.deliver(advice_document(advice, results, bounds))
