"""Results and advice as text: table, Markdown, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from molprof.analysis.documents.benchmark import bench_document, bench_rows
from molprof.analysis.render.markdown import to_markdown
from molprof.analysis.render.table import to_table
from molprof.common.bench_records import SCHEMA, Results
from molprof.common.text import escaped, escaped_json


def render_results(results: Results, form: str, title: str) -> str:
    """All results in one of `table`, `markdown`, `json`, `csv`, ending with a newline.

    Raises:
        TraceError: the figures of a result are not what they should be.
    """
    if form == "json":
        cases = bench_rows(results)
        return json_text({"schema": SCHEMA, "environments": results.environments, "runs": results.runs, "cases": cases})
    if form == "csv":
        return _csv(bench_rows(results))
    document = bench_document(results, title)
    return to_markdown(document) if form == "markdown" else to_table(document)


def json_text(value: Any) -> str:
    """Indented JSON that a terminal can be shown."""
    return escaped_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """Columns that any row has, but for nested ones: phases become one column each."""
    flat = []
    for row in rows:
        phases = row["phases"] or {}
        plain = {name: value for name, value in row.items() if name not in ("phases", "stack")}
        flat.append({**plain, **{f"{name}_ratio": value for name, value in phases.items()}})
    names = list(dict.fromkeys(name for row in flat for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    for row in flat:
        writer.writerow({name: escaped(value) if isinstance(value, str) else value for name, value in row.items()})
    return buffer.getvalue()
