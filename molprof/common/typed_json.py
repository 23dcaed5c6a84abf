"""Typed values from foreign JSON: every field is checked, errors have one wording."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

from molprof.common.errors import MolprofError, TraceError

_T = TypeVar("_T")
# msgspec (0.22) crashes when two threads ask for the same dataclass for the first time.
_ALONE = threading.Lock()


def read_typed(
    raw: Any, kind: type[_T], where: str, hint: str | None = None, error: type[MolprofError] = TraceError
) -> _T:
    """Return `raw`, decoded JSON, as `kind`; keys that `kind` lacks are dropped.

    Raises `error` if a field is missing, has another type, or `kind` itself refuses its value. Messages begin with
    `where`: a file and line, or a key.
    """
    try:
        with _ALONE:
            return msgspec.convert(raw, kind)
    except msgspec.ValidationError as problem:
        text, _, location = str(problem).partition(" - at ")
        text = (
            text.replace("Object missing required field", "missing field")
            .replace("Expected", "expected")
            .replace("Invalid enum value", "unknown value")
        )
        path = location.strip("`").removeprefix("$").removeprefix(".")
        raise error(f"{where}: {path}: {text}" if path else f"{where}: {text}", hint) from problem
    except UnicodeEncodeError as problem:
        raise error(f"{where}: a key has half of a character, {problem.object[:40]!r}", hint) from problem
    except MolprofError as problem:
        raise error(f"{where}: {problem}", hint or problem.hint) from problem
