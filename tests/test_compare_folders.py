"""`compare` of folders: a trace that cannot be read is told, and stops no other."""

from __future__ import annotations

import shutil
from pathlib import Path

from conftest import Cli

TRACES = Path(__file__).resolve().parent.parent / "traces"


def test_a_damaged_trace_of_a_folder_is_left_out_and_told(tmp_path: Path, molprof: Cli) -> None:
    for name in ("cpu-llama", "cpu-llama-jump"):
        shutil.copy(TRACES / f"{name}.json.gz", tmp_path)
    cut = (TRACES / "cpu-llama.json.gz").read_bytes()[:50_000]
    (tmp_path / "cut.json.gz").write_bytes(cut)
    result = molprof("compare", ".", "--format", "json")
    assert result.returncode == 3 and '"cpu-llama-jump' in result.stdout
    assert "2 of 3 traces read, 1 failed because cut.json.gz: gzip data is truncated at byte 50000" in result.stderr
    named = molprof("compare", *sorted(path.name for path in tmp_path.iterdir()))
    assert (named.returncode, named.stdout) == (3, "")
