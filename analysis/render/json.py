"""Documents as JSON: what a terminal would obey stands as JSON's own escapes, so values stay the same."""

from __future__ import annotations

import json
from typing import Any

from molprof.common.document import Document
from molprof.common.text import escaped_json


def render(document: Document) -> str:
    """The documented JSON of the subject, indented; each item of a list on one line."""
    data = document.data()
    if isinstance(data, list) and data:
        return escaped_json("[\n" + ",\n".join(f"  {_json(item)}" for item in data) + "\n]\n")
    return escaped_json(_json(data, indent=2) + "\n")


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
