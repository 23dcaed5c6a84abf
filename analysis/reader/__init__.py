"""A trace file, streamed into the trace processor without losing an event.

What SQL sees has the names of Perfetto's own reader of Chrome JSON, so that a query also runs on
the raw file in the Perfetto UI:

- `slice`: one row per complete event (ph X): `name`, `category` (`cat`; NULL when there is none), `ts`
  and `dur` in exact ns, `ts` from the earliest event of the file (`TraceInfo.origin_ns`); a missing
  `dur` is 0. Instant events (ph i) are rows too, with `dur` 0 and their own category.
- args: `EXTRACT_ARG(arg_set_id, 'args.correlation')`, `'args.External id'`, `'args.grid[0]'`, ...;
  true and false are 1 and 0; null, {} and [] have no row.
- `slice` -> `thread_track` (`track_id`) -> `thread` (`utid`) -> `process` (`upid`): `thread.tid` and
  `process.pid` are the file's where these are integers from 1 to 2**31 - 1, or pid 0 and its tid 0. For
  any other (text, negative, huge, tid 0 of another process) they are made up, from 2**31 on, and the
  name of the thread or process is what the file has in its place, unless metadata name it.
- lanes: a slice that partly overlaps another on its track is on a made-up thread of the same process,
  named like `stream 7 (lane 2)`, and has `args.molprof_tid`, the `thread.tid` of the track that it
  belongs to. Nesting (`depth`, `parent_id`) holds within a lane.
- `flow`: flow events (ph s, t, f); `counter`: ph C; asynchronous slices (ph b, e, n) are on tracks that
  are no thread's.
- text: see `molprof.analysis.reader.text`.
"""

from molprof.analysis.reader.load import TraceInfo, load_trace

__all__ = ["TraceInfo", "load_trace"]
