"""What a command showed before, from the user's cache, without importing what made it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from molprof.commands.options import Judged, judged, note, write
from molprof.common.cache import cache_key, read_entry, write_entry

MAX_BYTES = 64 << 20
_FOLDER = "shown"
STDIN = "-"


@dataclass(frozen=True)
class Shown:
    """Remarks for stderr, the text of each output, and what thresholds found in each trace that was judged."""

    notes: list[str]
    texts: list[str]
    outcomes: list[tuple[str, Judged]] = field(default_factory=list)  # with the trace to name before, or nothing


def shown(paths: Sequence[Path], cached: bool, facts: Sequence[object], make: Callable[[], Shown]) -> Shown:
    """What `make` returns for the files at `paths`, or did before: with the same facts, files and code.

    Without `cached`, and for standard input, it is made anew and not stored.
    """
    key = None
    if cached and STDIN not in map(str, paths):
        key = cache_key(paths, list(map(str, paths)), *facts)
    if key and (kept := read_entry(_FOLDER, key)):
        return Shown(**json.loads(bytes(kept)))
    made = make()
    if key:
        write_entry(_FOLDER, key, json.dumps(asdict(made)).encode(), MAX_BYTES)
    return made


def deliver_shown(made: Shown, outputs: Sequence[Path | None], style: str) -> int:
    """Write each text to its file, or all of them to stdout, JSON of several as a list; the exit code of thresholds."""
    note(*made.notes)
    if len(made.texts) > 1 and outputs[0] is None:
        texts = [text.rstrip("\n") for text in made.texts]
        write("[\n" + ",\n".join(texts) + "\n]" if style == "json" else "\n\n".join(texts))
    else:
        for text, place in zip(made.texts, outputs, strict=True):
            write(text, place)
    codes = [0]
    for title, outcome in made.outcomes:
        if title:
            note(title)
        codes.append(judged(outcome))
    return 1 if 1 in codes else max(codes)
