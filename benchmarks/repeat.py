#!/usr/bin/env python3
"""A large trace made of a real one: the same events over and over, each time later and with other correlation ids.

    python benchmarks/repeat.py TRACE.json.gz LARGE.json.gz [--size 1e9] [--without python_function,...]

Prints the uncompressed bytes and the events that it wrote as JSON.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from isal import igzip
from shared import parser


def repeated(trace: Path, without: set[str]) -> Iterator[tuple[bytes, int]]:
    """Blocks of JSON text with the number of events in each, without those of some categories."""
    with gzip.open(trace) as file:
        document = json.load(file, parse_float=Decimal)
    events = [event for event in document.pop("traceEvents") if event.get("cat") not in without]
    named = [event for event in events if event.get("ph") == "M"]
    timed = [event for event in events if event.get("ph") != "M"]
    starts_ns = [int(Decimal(event["ts"]) * 1000) for event in timed]
    span_ns = max(starts_ns) - min(starts_ns) + 1_000_000
    # Numbers that change are marked, so that a repetition is a join of texts.
    for event, start_ns in zip(timed, starts_ns, strict=True):
        event["ts"] = f"@T{start_ns}@"
        if isinstance(event.get("args"), dict):
            for key in ("correlation", "External id"):
                if isinstance(event["args"].get(key), int):
                    event["args"][key] = f"@C{event['args'][key]}@"
        if event["ph"] in "sft" and isinstance(event.get("id"), int):
            event["id"] = f"@C{event['id']}@"
    head = json.dumps(document, default=float)[1:-1]
    begin = f'{{{head}{", " if head else ""}"traceEvents": [\n'
    yield "".join([begin, *(_text(event) + ",\n" for event in named)]).encode(), 0
    pieces = re.split(r'"@([TC])(\d+)@"', ",\n".join(map(_text, timed)))
    kinds = [(kind == "T", int(value)) for kind, value in zip(pieces[1::3], pieces[2::3], strict=True)]
    for number in itertools.count():
        parts = []
        for text, (is_time, value) in zip(pieces[::3], kinds, strict=False):
            if is_time:
                ns = value + number * span_ns
                parts += [text, f"{ns // 1000}.{ns % 1000:03d}"]
            else:
                parts += [text, str(value + number * 10_000_000 if value > 0 else value)]
        yield ("".join([*parts, pieces[-1]])).encode(), len(timed)


def _text(event: dict[str, Any]) -> str:
    """Return the event as torch.profiler 2.13 writes it: a line per member, all args on one line."""
    args = event.get("args")
    keys = (key for key in event if key != "args")
    text = ",\n".join(f"    {json.dumps(key)}: {json.dumps(event[key], default=float)}" for key in keys)
    if args is not None:
        text += f'\n    ,\n    "args": {{\n      {json.dumps(args, default=float)[1:-1]}\n    }}'
    return f"  {{\n{text}\n  }}"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("trace", type=Path)
    options.add_argument("target", type=Path)
    options.add_argument("--size", type=float, default=1e9, help="uncompressed bytes of the file")
    options.add_argument("--without", default="", help="categories left out, separated by commas")
    arguments = options.parse_args()
    written = events = 0
    with igzip.open(arguments.target, "wb", compresslevel=1) as file:
        for block, count in repeated(arguments.trace, set(filter(None, arguments.without.split(",")))):
            text = block if not events else b",\n" + block
            file.write(text)
            written += len(text)
            events += count
            if written >= int(arguments.size):
                break
        file.write(b"\n]}\n")
    print(json.dumps({"bytes": written, "events": events}))


if __name__ == "__main__":
    main()
