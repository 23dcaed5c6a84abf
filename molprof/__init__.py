"""molprof: why constrained text generation is slower (or faster) than unconstrained, kernel by kernel.

trace = molprof.load("trace.json.gz")
trace.figures, trace.findings, trace.kernels, trace.sql("SELECT name, dur FROM slice")
molprof.compare("before.json.gz", "after.json.gz")
"""

from __future__ import annotations

import os

# As typing has it, whose import takes as long as all else here: Ctrl-C would show where it was.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from molprof.analysis.frame import Frame
    from molprof.analysis.reader import Reading
    from molprof.analysis.trace import Trace, each_trace
    from molprof.api import compare, load, query, read_many
    from molprof.common.live import phase, step, tokens, watch
    from molprof.profiler.recording.handler import trace_handler
    from molprof.profiler.recording.record import record
    from molprof.profiler.recording.recording import Recording

__all__ = [
    "Frame", "Reading", "Recording", "Trace", "compare", "each_trace", "load", "phase", "query", "read_many", "record",
    "step", "tokens", "trace_handler", "watch",
]  # fmt: skip
__version__ = "0.1.0"
# Python that starts at the root of a checkout finds this folder before an installed package. The folders of the parts
# `analysis`, `profiler` and `queries` then stand beside it.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if os.path.isfile(os.path.join(_ROOT, "setup.cfg")) and os.path.isdir(os.path.join(_ROOT, "analysis")):
    __path__.append(_ROOT)
_HOMES = {
    **dict.fromkeys(("compare", "load", "query", "read_many"), "molprof.api"),
    **dict.fromkeys(("Trace", "each_trace"), "molprof.analysis.trace"),
    "Frame": "molprof.analysis.frame",
    "Reading": "molprof.analysis.reader",
    **dict.fromkeys(("phase", "step", "tokens", "watch"), "molprof.common.live"),
    "Recording": "molprof.profiler.recording.recording",
    "record": "molprof.profiler.recording.record",
    "trace_handler": "molprof.profiler.recording.handler",
}


def __getattr__(name: str) -> Any:
    """Import an exported name on first use, so that `import molprof` takes no time."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        if _HOMES[name].startswith("molprof.analysis"):
            import_module("molprof.api")  # by which a prompt and a notebook show results
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from molprof.common.errors import missing_extra

        if (missing := missing_extra(error.name or "", f"molprof.{name}")) is None:
            raise
        raise missing from error


def __dir__() -> list[str]:
    """Return all names with the exported ones, so that shells and notebooks complete them."""
    return sorted({*globals(), *__all__})
