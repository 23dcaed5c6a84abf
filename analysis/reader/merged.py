"""Traces that were merged from those of several ranks: which process is of which rank, by its number or name."""

from __future__ import annotations

import re

from molprof.analysis.reader.events import Id
from molprof.analysis.reader.survey import Survey

# What has correlation numbers, which each rank counts itself.
_LINKED = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
# `rank3_1234`, `Rank 3: python`; `[TP03] 1234`, as SGLang's merger writes; `r3:1234`; `3_1234`.
_RANK = re.compile(r"\brank[\s_:#=-]*(\d{1,9})(?!\d)", re.IGNORECASE)
_LABEL = re.compile(r"\s*\[((?:[A-Z]{2}-?\d{1,6})(?:-[A-Z]{2}-?\d{1,6})*)\]")
_SHORT = re.compile(r"\s*[rR]?(\d{1,9})\s*[:_|/]\s*\S")
_NUMBER = re.compile(r"\d+")


def told_ranks(found: Survey) -> dict[Id, int]:
    """The rank of each process of a merged trace that tells it; empty unless several are told, and all that matter.

    A label of several numbers (`[TP01-PP00]`) is no rank: such processes are numbered in the order of their labels.
    """
    pids = {pid for pid, _ in found.track_ids} | set(found.process_names)
    keys = {pid: key for pid in pids if (key := _key(str(pid))) or (key := _key(found.process_names.get(pid, "")))}
    wanted = found.has_label(label.category in _LINKED for label in found.labels)
    linked = {found.track_ids[track][0] for track in set(found.tracks[wanted].tolist())}
    if len({keys.get(pid) for pid in linked}) < 2 or not linked <= keys.keys():
        return {}
    if all(len(key) == 1 for key in keys.values()):
        return {pid: key[0] for pid, key in keys.items()}
    order = {key: number for number, key in enumerate(sorted(set(keys.values())))}
    return {pid: order[key] for pid, key in keys.items()}


def _key(text: str) -> tuple[int, ...]:
    """The numbers by which a process number or name tells the rank."""
    if match := _LABEL.match(text):
        return tuple(map(int, _NUMBER.findall(match[1])))
    match = _RANK.search(text) or _SHORT.match(text)
    return (int(match[1]),) if match else ()
