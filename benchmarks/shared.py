"""What the scripts share: options, tables in Markdown, and files of what was measured. Imports no torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from molprof.common.files import replacing

ROOT = Path(__file__).resolve().parent.parent


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints the script's docstring as it stands."""
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
    made.add_argument("-o", "--output", type=Path, help="keep the measurements in this file too, as JSON")
    return made


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table in Markdown whose first `left` columns are text and all others numbers."""
    rule = [*["---"] * left, *["---:"] * (len(head) - left)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def keep(path: Path | None, measured: Any) -> None:
    """Write what was measured as JSON, with a path."""
    if path is not None:
        with replacing(path) as part:
            part.write_text(json.dumps(to_builtins(measured), indent=1) + "\n", encoding="utf-8")
