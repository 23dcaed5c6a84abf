"""`molprof recommend`: the fastest valid configuration of those that were measured."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import TRACE, check_result, deliver, engine_options, note, result_options


@click.command("recommend")
@click.argument("file", type=click.Path(path_type=Path, readable=False))
@click.option("--trace", type=TRACE, metavar="TRACE", help="Bounds what each change can gain: Amdahl.")
@result_options("table", "markdown", "json")
@engine_options
def command(
    file: Path, trace: Path | None, style: str, output: Path | None, force: bool, trace_processor: str | None
) -> None:
    """The fastest valid configuration in FILE for each machine, model, processor and batch size.

    Says how sure that is, what it gains over the default (sdpa, dynamic cache, not compiled), what each single change
    gains, and what is no candidate and why. Valid: every process was ok, and as many molecules are valid as by
    default.

    \b
    Examples:
      molprof recommend bench.jsonl
      molprof recommend bench.jsonl --trace qwen-lp.json.gz
    """
    check_result(output, force)
    from molprof.analysis.bench.bounds import read_bounds
    from molprof.analysis.bench.recommend import recommend
    from molprof.analysis.bench.render import json_text
    from molprof.analysis.documents.advice import advice_document, advice_json
    from molprof.analysis.render.markdown import to_markdown
    from molprof.analysis.render.table import to_table
    from molprof.common.bench_records import read_results

    results = read_results(file)
    for line in results.notes:
        note(line)
    advice = recommend(results)
    bounds = None if trace is None else read_bounds(trace, trace_processor)
    if style == "json":
        deliver(json_text(advice_json(advice, results, bounds)), output)
        return
    document = advice_document(advice, results, bounds)
    deliver(to_markdown(document) if style == "markdown" else to_table(document), output)
