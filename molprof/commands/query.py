"""`molprof query`: SQL over one trace or several, and the list of the modules of the SQL package."""

from __future__ import annotations

from pathlib import Path

import click

from molprof import api
from molprof.analysis.reader import Reading
from molprof.commands.command import Command
from molprof.commands.options import (
    TRACE,
    ResultOptions,
    note,
    reading_options,
    refuse_twice,
    result_options,
    terminal_columns,
    write,
)
from molprof.common.setting import key_values


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    return key_values("--param", values, "below_ns=5000")


@click.command("query", cls=Command)
@click.argument("query", metavar="QUERY")
@click.argument("traces", type=TRACE, nargs=-1, required=True)
@click.option(
    "-p", "--param", "parameters", multiple=True, metavar="KEY=VALUE", callback=_pairs,
    help="Value of $KEY in the query: a number or text. Repeatable.",
)  # fmt: skip
@click.option("--stacks", is_flag=True, help="Read Python stacks too (category python_function).")
@reading_options
@result_options("parquet")
def command(
    query: str, traces: tuple[Path, ...], parameters: dict[str, str], reading: Reading, result: ResultOptions
) -> None:
    """Run QUERY over each of TRACES.

    QUERY is the name of a module or table that molprof query list shows, a .sql file, or SQL in quotes. SQL may use the
    names of all modules without including them. With several traces, a first column `trace` names the trace of each
    row. Results of several statements follow each other; csv, json and parquet hold one result only.

    \b
    Examples:
      molprof query launches trace.json.gz
      molprof query molprof_launch before.json.gz after.json.gz --format csv
      molprof query small_operations trace.json.gz -p below_ns=20000 -p more_than=100
      molprof query "SELECT name, dur FROM slice WHERE dur > $ns ORDER BY dur DESC" trace.json.gz -p ns=1e6
      molprof query mine.sql trace.json.gz -o mine.parquet
    """
    refuse_twice(traces)
    result.check([*traces, Path(query)])
    from molprof.analysis.documents.query_result import query_document
    from molprof.analysis.query import check_parquet, result_to_parquet

    if result.style == "parquet":
        check_parquet()
    query_result = api.query(traces, query, parameters, reading)
    note(*query_result.notes)
    if result.style == "parquet":
        write(result_to_parquet(query_result), result.output)
    else:
        result.deliver(query_document(query_result))


@click.command("list", cls=Command)
@click.argument("name", required=False)
@click.option("--sql", is_flag=True, help="Print only the SQL, with all that NAME includes, to paste into Perfetto.")
def list_command(name: str | None, sql: bool) -> None:
    """List the modules of the SQL package, or show the columns, units, example and SQL of NAME.

    NAME is a module, or a table, view or function of one.

    \b
    Examples:
      molprof query list
      molprof query list idle_causes
      molprof query list launches --sql
    """
    from molprof.queries.catalog import catalog, find_module, standalone_sql
    from molprof.queries.pages import module_list, module_page

    modules = catalog()
    if name is None:
        if sql:
            raise click.UsageError("--sql requires NAME")
        write(module_list(modules, terminal_columns()))
        return
    module = find_module(name, modules)
    write(standalone_sql(module.name, modules) if sql else module_page(module))


command.add(list_command)
