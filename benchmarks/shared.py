"""What the scripts share: options, prompts and runners, tables in Markdown, and the place of a table in a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.common.files import replacing

if TYPE_CHECKING:
    from molprof.profiler.decoding.runner import Runner
    from molprof.profiler.models.load import LoadedModel

DOCS = Path(__file__).resolve().parent.parent / "docs"


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that prints the script's docstring as it stands."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def generation_parser(description: str | None, count: int, batch_size: int) -> argparse.ArgumentParser:
    """Options of scripts that generate molecules, with their defaults."""
    made = parser(description)
    made.add_argument("--models", default="qwen,llama", help="presets, separated by commas")
    made.add_argument("-n", dest="count", type=int, default=count, help="molecules")
    made.add_argument("--batch-size", type=int, default=batch_size)
    made.add_argument("--device", default="auto")
    return made


def runner(loaded: LoadedModel, processor: Any, **settings: Any) -> Runner:
    """A greedy runner.

    Args:
        processor: its name, the processor itself, or None for no LP.
        settings: fields of `CaptureSettings` besides the model.
    """
    from molprof.common.settings import CaptureSettings
    from molprof.profiler.decoding.runner import Runner
    from molprof.profiler.processors import make_processor

    made = make_processor(processor, loaded.target) if isinstance(processor, str) else processor
    return Runner(loaded, made, CaptureSettings(loaded.name, template_threads=1, **settings))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown whose first `left` columns are text and all others numbers."""
    rule = [*["---"] * left, *["---:"] * (len(head) - left)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def insert(page: str, marks: tuple[str, str], text: str) -> None:
    """Replace what stands between two marks of a page of docs/."""
    before, rest = (DOCS / page).read_text(encoding="utf-8").split(marks[0])
    after = rest.split(marks[1])[1]
    with replacing(DOCS / page) as part:
        part.write_text(f"{before}{marks[0]}\n\n{text.strip()}\n\n{marks[1]}{after}", encoding="utf-8")
