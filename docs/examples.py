"""What pages show of `traces/`, made anew: `python docs/examples.py`. A test fails when a page is stale.

`python docs/examples.py masks.jsonl` makes the tables of `docs/masks.md` anew, from results of `molprof bench masks`. A
table below `<!-- bench show: TITLE -->` is the one of this title.

A block that begins with `$ molprof` holds what the command prints, or the lines that `sed -n` takes of it. A table
whose columns are traces and whose rows are figures holds their values.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from molprof import api
from molprof.analysis.figures.catalog import COMPARED
from molprof.common.values import by_unit

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/case-study.md", "docs/comparing.md")
_COMMAND = re.compile(r"```console\n\$ (molprof [^\n]+)\n.*?```", re.DOTALL)
_TABLE = re.compile(r"^\| figure ((?:\| `[\w-]+` )+)\|\n(.*)\n((?:\|.*\n)+)", re.MULTILINE)
# Of `bench show --format markdown` title and table; of a page the mark of a table, with its title, and the table.
_SECTION = re.compile(r"^### (.+)\n\n(?:- .*\n)*\n?((?:\|.*\n)+)", re.MULTILINE)
_MEASURED = re.compile(r"(<!-- bench show: (.+) -->\n)(?:\|.*\n)+")


def fresh(text: str) -> str:
    """Return a page with what its commands and figures are now."""
    text = _COMMAND.sub(lambda found: f"```console\n$ {found[1]}\n{_printed(found[1])}```", text)
    return _TABLE.sub(lambda found: _table(*found.groups()), text)


def _printed(command: str) -> str:
    words, _, lines = command.partition(" | sed -n ")
    line = [sys.executable, "-m", *shlex.split(words)]
    environment = os.environ | {"COLUMNS": "100"}
    shown = subprocess.run(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    if lines:
        cut = ["sed", "-n", *shlex.split(lines)]
        shown = subprocess.run(cut, input=shown, stdout=subprocess.PIPE, text=True, check=True).stdout
    return shown


def _table(names: str, rule: str, rows: str) -> str:
    paths = [ROOT / "traces" / f"{name}.json.gz" for name in re.findall(r"`(.+?)`", names)]
    reports = api.reports(paths, cached=True)
    lines = []
    for figure in (COMPARED[name] for name in re.findall(r"^\| .*?`(\w+)`", rows, re.MULTILINE)):
        values = (by_unit(figure.unit, figure.value(report)) for report in reports)
        lines.append(f"| {' | '.join([f'{figure.label}: `{figure.id}`', *values])} |\n")
    return f"| figure {names}|\n{rule}\n{''.join(lines)}"


def measured(text: str, shown: str) -> str:
    """Return a page with the tables of `molprof bench show --format markdown`."""
    tables = dict(_SECTION.findall(shown))
    return _MEASURED.sub(lambda found: f"{found[1]}{tables[found[2]]}", text)


def _renew(page: str, made: Callable[[str], str]) -> None:
    path = ROOT / page
    path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        results = _printed(f"molprof bench show {shlex.quote(os.path.abspath(sys.argv[1]))} --format markdown")
        _renew("docs/masks.md", lambda text: measured(text, results))
    else:
        for page in PAGES:
            _renew(page, fresh)
