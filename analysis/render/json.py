"""Documents as JSON: control characters are escaped as JSON does, so that values stay the same."""

from __future__ import annotations

import json
import re
from typing import Any

from molprof.common.document import Document

# All that is neither ASCII to print nor the newline between JSON's lines.
_SUSPECT = re.compile(r"[^\n\x20-\x7e]")


def render(document: Document) -> str:
    """Return the documented JSON of the subject, indented; each item of a list on one line."""
    data = document.json()
    if isinstance(data, (list, tuple)) and data:
        text = "[\n" + ",\n".join(f"  {_json(item)}" for item in data) + "\n]\n"
    else:
        text = _json(data, indent=2) + "\n"
    return _SUSPECT.sub(lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], text)


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
