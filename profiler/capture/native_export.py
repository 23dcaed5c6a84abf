"""Whether the installed torch exports Perfetto's own format: asked of a trace whose name ends in `.pftrace`."""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
import zlib
from pathlib import Path

from molprof.common.errors import MissingExtraError, UsageError

_HEAD_BYTES = 4096
_PACKET = b"\n"  # how the first packet of a trace begins: field 1, with a length
# A packet of 123 or 91 bytes begins like JSON behind an empty line, but does not go on so.
_JSON = re.compile(rb'\s*[\[{]\s*["{\]}]')


def check_native(output: Path) -> None:
    """Raises UsageError where no trace of Perfetto's own format can be written to `output`."""
    for package in ("isal", "perfetto"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "analysis", "writing .pftrace")
    if exports_native():
        return
    import torch

    what = f"torch {torch.__version__} does not write .pftrace: under that name it writes Chrome JSON too"
    stem = output.name[: output.name.lower().rindex(".pftrace")]
    raise UsageError(f"{output}: {what}", hint=f"-o {stem}.json.gz, which the Perfetto UI opens")


def exports_native() -> bool:
    """Whether torch.profiler writes packets, not JSON, to a file `x.pftrace`; exports a recording of nothing."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # as of a recorded pass: it writes two lines otherwise
    import torch

    with tempfile.TemporaryDirectory(prefix="molprof-") as folder:
        path = Path(folder, "x.pftrace")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            pass
        profiler.export_chrome_trace(str(path))
        with path.open("rb") as file:
            content = file.read(_HEAD_BYTES)
    if content.startswith(b"\x1f\x8b"):
        content = zlib.decompressobj(wbits=31).decompress(content, _HEAD_BYTES)
    return content.startswith(_PACKET) and not _JSON.match(content)
