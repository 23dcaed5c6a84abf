"""Whether the installed torch exports Perfetto's own format: asked of a trace whose name ends in `.pftrace`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from molprof.common.errors import UsageError

NATIVE_ENDINGS = (".pftrace", ".pftrace.gz")


def refuse_native(output: Path) -> None:
    """Raises UsageError for an output of Perfetto's own format, which captures do not have yet."""
    if not output.name.lower().endswith(NATIVE_ENDINGS):
        return
    import torch

    what = f"{output}: torch {torch.__version__}"
    stem = output.name[: output.name.lower().rindex(".pftrace")]
    hint = f"-o {stem}.json.gz, which the Perfetto UI opens"
    if exports_native():
        raise UsageError(f"{what} writes .pftrace, but a capture adds its tokens and times to Chrome JSON alone", hint)
    raise UsageError(f"{what} does not write .pftrace: under that name it writes Chrome JSON too", hint)


def exports_native() -> bool:
    """Whether torch.profiler writes other than JSON to a file `x.pftrace`; exports a recording of nothing."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # as of a recorded pass: it writes two lines otherwise
    import torch

    with tempfile.TemporaryDirectory(prefix="molprof-") as folder:
        path = Path(folder, "x.pftrace")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            pass
        profiler.export_chrome_trace(str(path))
        with path.open("rb") as file:
            return file.read(64).lstrip()[:1] not in (b"{", b"[")
