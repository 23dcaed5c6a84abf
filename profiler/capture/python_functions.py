"""What `capture --modules` keeps of the Python functions that torch traced: the calls of modules."""

from __future__ import annotations

import re
from pathlib import Path

from molprof.common.errors import RunError

_FUNCTION = re.compile(rb'"cat":\s*"python_function",\s*"name":\s*"(?!nn\.Module: )')
# How torch begins and ends each event of its file.
_BEGIN, _END, _LAST = b"  {\n", b"  },\n", b"  }"


def keep_modules(raw: Path) -> None:
    """Removes Python functions, but not modules, from a trace that torch exported. Raises RunError where it cannot."""
    part = Path(f"{raw}.modules")
    event: list[bytes] = []
    try:
        with raw.open("rb") as source, part.open("wb") as target:
            for line in source:
                if not event and line != _BEGIN:
                    target.write(line)
                    continue
                event.append(line)
                if line.startswith(_LAST):
                    text = b"".join(event)
                    # The last event has no comma behind it, and is not a function.
                    if line != _END or _FUNCTION.search(text) is None:
                        target.write(text)
                    event = []
            target.writelines(event)
        part.replace(raw)
    except OSError as problem:
        raise RunError(f"cannot write {part}: {problem.strerror}", hint="is the disk full?") from problem
