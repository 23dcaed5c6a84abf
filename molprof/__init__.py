"""molprof: why constrained text generation is slower (or faster) than unconstrained, kernel by kernel.

trace = molprof.load("trace.json.gz")
trace.report, trace.findings, trace.work, trace.query("SELECT name, dur FROM slice")
molprof.compare("before.json.gz", "after.json.gz")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from molprof.analysis.frame import Frame
    from molprof.analysis.reader import Reading
    from molprof.analysis.trace import Trace, each_trace
    from molprof.api import compare, load, query

__all__ = ["Frame", "Reading", "Trace", "compare", "each_trace", "load", "query"]

__version__ = "0.1.0"
_HOMES = {
    "Frame": "molprof.analysis.frame",
    "Reading": "molprof.analysis.reader",
    "Trace": "molprof.analysis.trace",
    "each_trace": "molprof.analysis.trace",
}


def __getattr__(name: str) -> Any:
    """What is exported, imported when it is used: `import molprof` takes no time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "molprof.api")), name)
