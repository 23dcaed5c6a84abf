"""The notebooks of the documentation run, and show what they are about."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from conftest import TIMEOUT_S
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("own-script", "3 batches, 720 tokens; steps 20 to 39 of batch 1 are recorded; 40 more ran under the profiler"),
        ("foreign-traces", "host_time    exact"),
        ("sweep", "tokens.useful"),
    ],
)
def test_a_notebook_runs(name: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (place := tmp_path / "docs/notebooks").mkdir(parents=True)
    book = nbformat.read(ROOT / f"docs/notebooks/{name}.ipynb", as_version=4)
    assert [cell for cell in book.cells if cell.get("outputs")] == []  # no outputs are committed
    done = NotebookClient(book, timeout=TIMEOUT_S, resources={"metadata": {"path": str(place)}}).execute()
    outputs = [item for cell in done.cells for item in cell.get("outputs", ())]
    assert shown in "".join(item.get("text", "") for item in outputs)
    assert any({"text/html", "image/png"} & {*item.get("data", ())} for item in outputs)
