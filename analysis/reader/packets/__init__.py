"""A trace in Perfetto's own format, as PyTorch writes it (`.pftrace`), turned into Chrome JSON.

Formats: https://perfetto.dev/docs/reference/synthetic-track-event (slices on tracks) and
https://perfetto.dev/docs/data-sources/gpu (GPU render stages and counters).
"""

from molprof.analysis.reader.packets.chrome import chrome_text
from molprof.analysis.reader.packets.events import ArgsOf
from molprof.analysis.reader.packets.stream import looks_like_packets

__all__ = ["ArgsOf", "chrome_text", "looks_like_packets"]
