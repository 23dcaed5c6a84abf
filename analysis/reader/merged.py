"""Traces that were merged from those of several ranks: which process is of which rank, by its number or name."""

from __future__ import annotations

from molprof.analysis.reader.events import Id
from molprof.analysis.reader.survey import Survey
from molprof.common.packets.recording import rank_key

# What has correlation numbers, which each rank counts itself.
_LINKED = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")


def told_ranks(found: Survey) -> dict[Id, int]:
    """The rank of each process of a merged trace that tells it; empty unless several are told, and all that matter.

    A label of several numbers (`[TP01-PP00]`) is no rank: such processes are numbered in the order of their labels.
    """
    pids = {pid for pid, _ in found.track_ids} | set(found.process_names)
    keys = {pid: rank_key(str(pid)) or rank_key(found.process_names.get(pid, "")) for pid in pids}
    keys = {pid: key for pid, key in keys.items() if key}
    wanted = found.has_label(label.category in _LINKED for label in found.labels)
    linked = {found.track_ids[track][0] for track in set(found.tracks[wanted].tolist())}
    if len({keys.get(pid) for pid in linked}) < 2 or not linked <= keys.keys():
        return {}
    if all(len(key) == 1 for key in keys.values()):
        return {pid: key[0] for pid, key in keys.items()}
    order = {key: number for number, key in enumerate(sorted(set(keys.values())))}
    return {pid: order[key] for pid, key in keys.items()}
