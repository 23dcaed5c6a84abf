"""`molprof queries`: the modules of the SQL package."""

from __future__ import annotations

import click

from molprof.commands.options import terminal_columns, write


@click.command("queries")
@click.argument("name", required=False)
@click.option("--sql", is_flag=True, help="Print only the SQL, with all that NAME includes, to paste into Perfetto.")
def command(name: str | None, sql: bool) -> None:
    """List the modules of the SQL package, or show the columns, units, example and SQL of NAME.

    NAME is a module, or a table, view or function of one.

    \b
    Examples:
      molprof queries
      molprof queries idle_causes
      molprof queries launches --sql
    """
    from molprof.queries.catalog import catalog, find_module, standalone_sql
    from molprof.queries.pages import module_list, module_page

    known = catalog()
    if name is None:
        if sql:
            raise click.UsageError("--sql requires NAME")
        write(module_list(known, terminal_columns()))
        return
    module = find_module(name, known)
    write(standalone_sql(module.name, known) if sql else module_page(module))
