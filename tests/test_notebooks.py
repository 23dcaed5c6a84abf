"""The notebooks of the documentation run, and show what they promise."""

from __future__ import annotations

from pathlib import Path

import nbformat
from conftest import ROOT, TIMEOUT_S
from nbclient import NotebookClient

SHOWN = {
    "own-script": "3 batches, 720 tokens; steps 20 to 39 of batch 1 are recorded; 40 more ran under the profiler",
    "foreign-traces": "host_time    exact",
    "sweep": "tokens.useful",
}


def test_the_notebooks_run(tmp_path: Path) -> None:
    """One after the other in one kernel, which imports torch once; each begins without the names of those before."""
    (tmp_path / "traces").mkdir()
    for trace in ("cpu-qwen.json.gz", "cpu-qwen-generic.json.gz"):  # all take four times as long to read
        (tmp_path / "traces" / trace).symlink_to(ROOT / "traces" / trace)
    (place := tmp_path / "docs/notebooks").mkdir(parents=True)
    books = {name: nbformat.read(ROOT / f"docs/notebooks/{name}.ipynb", as_version=4) for name in SHOWN}
    assert not any(cell.get("outputs") for book in books.values() for cell in book.cells)  # none are committed
    whole = nbformat.v4.new_notebook()
    for book in books.values():
        whole.cells += [nbformat.v4.new_code_cell("%reset -f"), *book.cells]
    NotebookClient(whole, timeout=TIMEOUT_S, resources={"metadata": {"path": str(place)}}).execute()
    for name, book in books.items():
        outputs = [item for cell in book.cells for item in cell.get("outputs", ())]
        assert SHOWN[name] in "".join(item.get("text", "") for item in outputs), name
        assert any({"text/html", "image/png"} & {*item.get("data", ())} for item in outputs), name
