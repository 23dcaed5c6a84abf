"""Output stays as it is: each command of `tests/goldens.py` prints its golden file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from golden_commands import GOLDENS, Golden
from goldens import CORPUS, FOLDER, GIVEN, block, difference, run, stored

CASES = [
    pytest.param(
        golden,
        command,
        id=f"{golden.name}: {command}",
        marks=pytest.mark.skipif(golden.needs_corpus and not CORPUS, reason="MOLPROF_CORPUS is not set"),
    )
    for golden in GOLDENS
    for command in golden.commands
]


@pytest.mark.parametrize(("golden", "command"), CASES)
def test_a_command_prints_what_it_did(golden: Golden, command: str, tmp_path: Path) -> None:
    found = block(command, run(golden, command, tmp_path))
    changed = difference(stored(golden.name).get(found.split("\n", 1)[0], ""), found)
    if changed:
        pytest.fail(f"molprof {command}\n{changed}\nif meant: python tests/goldens.py --write", pytrace=False)


def test_golden_files_hold_the_commands_and_no_more() -> None:
    files = {
        str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file() and GIVEN not in path.parents
    }
    assert files == {golden.name for golden in GOLDENS}
    for golden in GOLDENS:
        assert list(stored(golden.name)) == [f"$ molprof {command}".rstrip() for command in golden.commands]


def test_a_difference_shows_no_line_that_both_have() -> None:
    old = [f"line {number}" for number in range(2000)]
    new = [*old[:10], *(f"added {number}" for number in range(300)), *old[10:]]
    shown = difference("\n".join(old), "\n".join(new)).splitlines()
    assert [line for line in shown if line.startswith("-")] == ["--- golden"]
    new = [*old[:10], "added", *old[10:1500], "added", *old[1500:]]  # the second one is not reached
    shown = difference("\n".join(old), "\n".join(new)).splitlines()
    assert [line for line in shown if line.startswith(("-", "+"))] == ["--- golden", "+++ now, from line 8", "+added"]


def test_a_signal_is_not_recorded_as_the_end_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("molprof.cli.cli.main", lambda **_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        run(GOLDENS[0], GOLDENS[0].commands[0], tmp_path)
