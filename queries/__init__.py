"""The PerfettoSQL package `molprof`: one module per `.sql` file beside this one."""

from __future__ import annotations

from importlib.resources import files

PACKAGE = "molprof"


def modules() -> dict[str, str]:
    """Module key for INCLUDE PERFETTO MODULE (`molprof.launches`) to SQL text, sorted by key."""
    found = (item for item in files(__name__).iterdir() if item.name.endswith(".sql"))
    return {
        f"{PACKAGE}.{item.name.removesuffix('.sql')}": item.read_text(encoding="utf-8")
        for item in sorted(found, key=lambda item: item.name)
    }
