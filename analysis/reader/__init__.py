"""A trace file, streamed into the trace processor without losing an event.

SQL sees the names of Perfetto's own reader of Chrome JSON, so a query also runs on the raw file in the Perfetto UI:

- `slice`: one row per complete event (ph X). `ts` and `dur` are exact ns, `ts` from the earliest event of the file
  (`TraceInfo.origin_ns`); a missing `dur` is 0, a missing `cat` a NULL `category`. Instant events (ph i) have `dur` 0.
- args: `EXTRACT_ARG(arg_set_id, 'args.correlation')`, `'args.External id'`, `'args.grid[0]'`; true and false are 1 and
  0; null, {} and [] have no row.
- `thread.tid` and `process.pid` are the file's where these are integers from 1 to 2**31 - 1, or pid 0 with its tid 0.
  Any other (text, negative, huge, tid 0 of another process) becomes a number from 2**31 on, and the name of the thread
  or process, unless metadata name it.
- lanes: a slice that partly overlaps another on its track is on another thread of the same process, named like
  `stream 7 (lane 2)`; its `args.molprof_tid` is the `thread.tid` of its own track.
- `flow`: flow events (ph s, t, f); `counter`: ph C; asynchronous slices (ph b, e, n) are on tracks without a thread.
- text: see `molprof.analysis.reader.text`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from molprof.analysis.reader.info import TraceInfo

if TYPE_CHECKING:
    from molprof.analysis.reader.load import load_trace

__all__ = ["TraceInfo", "load_trace"]


def __getattr__(name: str) -> Any:
    if name != "load_trace":
        raise AttributeError(name)
    from molprof.analysis.reader import load  # on use: a kept trace needs no reader

    return load.load_trace
