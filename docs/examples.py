"""What pages show of `traces/`, made anew: `python docs/examples.py`. A test fails when a page is stale.

A block that begins with `$ molprof` holds what the command prints. A table whose columns are traces and whose rows are
figures holds their values.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from molprof import api
from molprof.analysis.figures.catalog import COMPARED
from molprof.common.values import by_unit

ROOT = Path(__file__).parent.parent
PAGES = ("docs/case-study.md", "docs/comparing.md")
_COMMAND = re.compile(r"```console\n\$ (molprof [^\n]+)\n.*?```", re.DOTALL)
_TABLE = re.compile(r"^\| figure ((?:\| `[\w-]+` )+)\|\n(.*)\n((?:\|.*\n)+)", re.MULTILINE)


def fresh(text: str) -> str:
    """A page with what its commands and figures are now."""
    text = _COMMAND.sub(lambda found: f"```console\n$ {found[1]}\n{_printed(found[1])}```", text)
    return _TABLE.sub(lambda found: _table(*found.groups()), text)


def _printed(command: str) -> str:
    line = [sys.executable, "-m", *shlex.split(command)]
    environment = os.environ | {"COLUMNS": "100"}
    return subprocess.run(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def _table(names: str, rule: str, rows: str) -> str:
    paths = [ROOT / "traces" / f"{name}.json.gz" for name in re.findall(r"`(.+?)`", names)]
    reports = api.reports(paths, cached=True)
    lines = []
    for figure in (COMPARED[name] for name in re.findall(r"^\| .*?`(\w+)`", rows, re.MULTILINE)):
        values = (by_unit(figure.unit, figure.value(report)) for report in reports)
        lines.append(f"| {' | '.join([f'{figure.label}: `{figure.id}`', *values])} |\n")
    return f"| figure {names}|\n{rule}\n{''.join(lines)}"


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(fresh(path.read_text(encoding="utf-8")), encoding="utf-8")
