"""The PerfettoSQL package `molprof`: one module per `.sql` file beside this one."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

PACKAGE = "molprof"
# A module of the package. Those of the trace processor itself are everywhere.
INCLUDE = re.compile(rf"^INCLUDE PERFETTO MODULE {PACKAGE}\.(\w+);$", re.MULTILINE)

# What making a module's tables takes of a large trace, in about 50 ms of CPU per million slices; less for all others.
# Two processes share queries by it (`benchmarks/costs.py` measures it).
COSTS = {
    "idle_causes": 20,
    "gpu_work": 9,
    "host_totals": 7,
    "devices": 5,
    "gpu_calls": 4,
    "launches": 3,
    "step_launches": 3,
    "work_totals": 2,
    "certificate_clocks": 1,
    "certificate_launches": 1,
    "certificate_overlap": 1,
    "certificate_ranks": 1,
    "step_placement": 1,
    "work_kinds": 1,
}
# A row of molprof.phase_marks that names a file and a function.
_FUNCTION_MARK = re.compile(r"^ +\('\w+', '\w+', '\w+', '([^']+)', '([^']+)'\),?$", re.MULTILINE)


def included(sql: str) -> frozenset[str]:
    """The modules of the package that SQL includes, and those that these include, without the package's name."""
    found = INCLUDE.findall(sql)
    return frozenset(found).union(*map(_included_by, found))


@functools.cache
def _included_by(module: str) -> frozenset[str]:
    return included(modules()[f"{PACKAGE}.{module}"])


@functools.cache
def modules() -> Mapping[str, str]:
    """Module key for INCLUDE PERFETTO MODULE (`molprof.launches`) to SQL text, sorted by key."""
    found = sorted(Path(__file__).parent.glob("*.sql"), key=lambda path: path.name)
    return MappingProxyType({f"{PACKAGE}.{path.stem}": path.read_text(encoding="utf-8") for path in found})


@functools.cache
def marking_functions() -> Mapping[str, re.Pattern[str]]:
    """The Python functions that mark phases, by the table of molprof.phase_marks: what fits their files, by name."""
    files: dict[str, list[str]] = {}
    for path, name in _FUNCTION_MARK.findall(modules()[f"{PACKAGE}.phase_marks"]):
        files.setdefault(name, []).append(fnmatch.translate(f"*{path}([0-9]*)"))
    return MappingProxyType({name: re.compile("|".join(paths)) for name, paths in files.items()})
