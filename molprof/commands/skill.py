"""`molprof skill`: a folder of pages for an assistant that runs commands."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.command import Command
from molprof.commands.options import make_folder, note
from molprof.common.errors import UsageError
from molprof.common.files import check_output, replacing


@click.command("skill", cls=Command)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--force", is_flag=True, help="Replace the files of an existing DIR.")
def command(folder: Path, force: bool) -> None:
    """Write DIR: pages of workflow for an assistant, one for each question that traces answer.

    A page has commands, findings with their triggers and fixes, and SQL with its columns; commands and SQL are files
    too. Write the pages again after an update of molprof.

    \b
    Examples:
      molprof skill .claude/skills/molprof
      molprof skill molprof-skill --force
    """
    from molprof.analysis.documents.skill import skill_files

    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"{folder} is not empty", hint="name another folder, or --force to replace its files")
    files = skill_files()
    for parent in dict.fromkeys((folder / name).parent for name in files):
        make_folder(parent, "DIR")
    for name in files:
        check_output(folder / name, force)
    for name, text in files.items():
        with replacing(folder / name) as part:
            part.write_text(text, encoding="utf-8")
    note(f"wrote {folder}: {len(files)} files, first {folder / 'SKILL.md'}")
