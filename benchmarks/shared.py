"""What the scripts share: options, tables in Markdown, and where results go. Imports no torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from molprof.common.files import replacing

ROOT = Path(__file__).resolve().parent.parent


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that prints the script's docstring as it stands."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def generation_parser(description: str | None, count: int, batch_size: int) -> argparse.ArgumentParser:
    """Options of scripts that generate molecules, with their defaults."""
    made = parser(description)
    made.add_argument("--models", default="qwen,llama", help="presets, separated by commas")
    made.add_argument("--size", help="size of the presets, as of molprof capture")
    made.add_argument("-n", dest="count", type=int, default=count, help="molecules")
    made.add_argument("--batch-size", type=int, default=batch_size)
    made.add_argument("--max-new-tokens", type=int, help="at most so many tokens for each molecule, to try a script")
    made.add_argument("--device", default="auto")
    made.add_argument("-o", "--output", type=Path, help="keep the measurements in this file instead, as JSON")
    made.add_argument("--write", action="store_true", help="put the tables into their page instead of printing them")
    return made


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown whose first `left` columns are text and all others numbers."""
    rule = [*["---"] * left, *["---:"] * (len(head) - left)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def between(page: str, marks: tuple[str, str], text: str) -> str:
    """A page with `text` between two marks in place of what was there."""
    before, rest = page.split(marks[0])
    return f"{before}{marks[0]}\n\n{text.strip()}\n\n{marks[1]}{rest.split(marks[1])[1]}"


def publish(text: str, write: bool, page: str, marks: tuple[str, str]) -> None:
    """Print a text, or put it between two marks of a page of docs/."""
    if not write:
        print(text)
        return
    path = ROOT / "docs" / page
    with replacing(path) as part:
        part.write_text(between(path.read_text(encoding="utf-8"), marks, text), encoding="utf-8")
