"""A second, plain way to divide a device's idle time: event by event, with exact decimals, and no SQL.

`gaps(path)` gives, by device, each gap as its position, its length and the ns of each cause of queries/idle_causes.sql:
those that the host is to blame for, `launching`, and the rest as `device`.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

GPU, CALLS = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
RECORDED = ("cpu_op", "user_annotation", *GPU, *CALLS)
Interval = tuple[int, int]
Gap = tuple[str, int, Counter[str]]


def ns(us: Any) -> int:
    return int((Decimal(us) * 1000).to_integral_value())


def _is_sync(event: dict[str, Any], copies: set[Any]) -> bool:
    name = event["name"]
    if "Synchronize" in name or event["correlation"] in copies:
        return True
    return "Memcpy" in name and "Async" not in name and "DtoD" not in name


def union(intervals: list[Interval]) -> list[Interval]:
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def _common(intervals: list[Interval], start: int, end: int) -> int:
    place = max(0, bisect_right(intervals, (start, start)) - 1)
    total = 0
    while place < len(intervals) and intervals[place][0] < end:
        total += max(0, min(end, intervals[place][1]) - max(start, intervals[place][0]))
        place += 1
    return total


def gaps(path: Path) -> dict[str, list[Gap]]:
    with gzip.open(path) as file:
        events = [event for event in json.load(file, parse_float=Decimal)["traceEvents"] if event.get("ph") == "X"]
    calls, work = {}, defaultdict(list)
    inside: dict[Any, dict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    pageable = {
        event["args"].get("correlation")
        for event in events
        if event.get("cat") in GPU and fnmatchcase(event["name"], "Memcpy DtoH*Pageable*")
    }
    recorded = [(ns(event["ts"]), ns(event.get("dur", 0))) for event in events if event.get("cat") in RECORDED]
    edges = min(start for start, _ in recorded), max(start + dur for start, dur in recorded)
    for event in events:
        start, category = ns(event["ts"]), event.get("cat")
        item = {
            "name": event["name"], "start": start, "end": start + ns(event.get("dur", 0)),
            "correlation": (event.get("args") or {}).get("correlation"),
            "thread": (event["pid"], event["tid"]),
        }  # fmt: skip
        if category in CALLS:
            calls.setdefault(item["correlation"], item)
        if category in (*CALLS, "cpu_op"):
            sets = inside[item["thread"]]
            moment = (start, item["end"])
            sets["any"].append(moment)
            if category in CALLS:
                sets["call"].append(moment)
                if _is_sync(item, pageable):
                    sets["sync"].append(moment)
        if category in GPU:
            work[str(event["args"].get("device", event["pid"]))].append(item)
    unions = {thread: {kind: union(list_) for kind, list_ in sets.items()} for thread, sets in inside.items()}
    return {device: list(_of_device(items, calls, unions, edges)) for device, items in work.items()}


def _of_device(items: list[Any], calls: dict[Any, Any], unions: dict[Any, Any], edges: Interval) -> Iterator[Gap]:
    items = sorted(items, key=lambda item: item["start"])
    queued = sorted(min(calls.get(item["correlation"], item)["start"], item["start"]) for item in items)
    end, last = edges[0], None
    for place, item in enumerate(items):
        if item["start"] > end:
            found: Counter[str] = Counter()
            call = calls.get(item["correlation"])
            # Nothing was queued if no more work was queued by then than had begun.
            empty = call is not None and (last is None or bisect_left(queued, end + 1) <= place)
            host_end = max(end, min(call["start"], item["start"])) if empty else end
            _divide(found, end, host_end, call, last and calls.get(last["correlation"]), unions)
            is_late = empty and item["start"] - call["end"] > max(100_000, call["end"] - end)
            found["launching" if empty and not is_late else "device"] += item["start"] - host_end
            yield "between" if last else "before", item["start"] - end, found
        if last is None or item["end"] > end:
            end, last = item["end"], item
    if last is not None and edges[1] > end:
        found, call = Counter(), calls.get(last["correlation"])
        _divide(found, end, edges[1] if call else end, call, None, unions)
        found["device"] += 0 if call else edges[1] - end
        yield "after", edges[1] - end, found


def _divide(found: Counter[str], start: int, end: int, call: Any, before: Any, unions: dict[Any, Any]) -> None:
    if end <= start:
        return
    times = Counter[str]()
    mine = unions[call["thread"]]
    begin = next((max(start, at) for at, until in mine["any"] if until > start), end)
    stretches = [(start, end, mine)]
    if before is not None and before["thread"] != call["thread"]:
        stretches.append((start, min(begin, end), unions[before["thread"]]))
    for first, until, sets in stretches:
        times.update({kind: _common(sets.get(kind, []), first, until) for kind in ("any", "call", "sync")})
    found["cpu_waited"] += times["sync"]
    found["cpu_calls"] += times["call"] - times["sync"]
    found["cpu_operators"] += times["any"] - times["call"]
    found["cpu_outside"] += end - start - times["any"]
