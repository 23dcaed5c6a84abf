"""What people and programs read stays as it is: each command of `tests/goldens.py` prints what its golden file says."""

from __future__ import annotations

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
