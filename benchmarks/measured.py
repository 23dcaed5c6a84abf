"""What was measured on GPUs, put into the pages of docs/: from traces/ and docs/results/, and from nothing else.

python benchmarks/measured.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from folder import CONTENTS, TRACE
from gpu import EVIDENCE
from gpu_tables import Gpu, benchmarks, decoding, evidence, processors
from records import History, read_record
from shared import ROOT, between

from molprof import api
from molprof.common.files import replacing

MARKS = "<!-- benchmarks/measured.py writes from here -->", "<!-- measured.py ends here -->"


def gpus(root: Path) -> list[Gpu]:
    """The results of every GPU, by the short name of the GPU."""
    found = []
    for folder in sorted(path.parent for path in (root / "docs" / "results").glob(f"*/{EVIDENCE}")):
        known = {name: root / "traces" / f"{folder.name}-{name}" for names in CONTENTS.values() for name in names}
        there = {name.removesuffix(TRACE): path for name, path in known.items() if path.exists()}
        reports = api.reports(list(there.values()), cached=True)
        found.append(Gpu(read_record(folder / EVIDENCE, History), dict(zip(there, reports, strict=True)), folder))
    return found


# Page -> what it shows of a GPU.
PAGES: dict[str, Callable[[Gpu], Iterator[str]]] = {
    "processors.md": processors,
    "decoding.md": decoding,
    "benchmarks.md": benchmarks,
    "gpu.md": evidence,
}


def pages(root: Path) -> dict[Path, str]:
    """Every page with the results of all GPUs."""
    found = gpus(root)
    made = {}
    for name, show in PAGES.items():
        path = root / "docs" / name
        link = "" if name == "gpu.md" else " ([GPUs](gpu.md))"
        text = f"Not measured on a GPU yet. `python benchmarks/gpu.py FOLDER` measures it{link}."
        if found:
            text = "\n\n".join("\n\n".join([f"### {gpu.name}", *show(gpu)]) for gpu in found)
        made[path] = between(path.read_text(encoding="utf-8"), MARKS, text)
    return made


def main(root: Path = ROOT) -> None:
    for path, text in pages(root).items():
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
