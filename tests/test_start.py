"""The benchmark of start times: a row for each command, with what was measured beside what was asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import start

from molprof.cli import COMMANDS


def test_rows_and_commands(tmp_path: Path) -> None:
    assert start.row("x", (0.5, None), (0.6, None)) == ["x", "0.50", "0.6", "", ""]
    assert all(command.text.split()[0] in ("--help", *COMMANDS) for command in start.COMMANDS)
    assert all((start.ROOT / path).is_file() for path in start.FOUR)
    first, again = start.times([sys.executable, "-c", "import os; open(os.environ['MOLPROF_CACHE'] + '/x', 'a')"], 1)
    assert first > 0
    assert again > 0


def test_its_page_has_a_place_for_the_table() -> None:
    page = (start.ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page.count(start.MARKS[0]) == 1
