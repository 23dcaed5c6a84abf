"""Reports of several traces at once, each made in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from molprof.analysis.figures.model import Report
from molprof.analysis.reports.cache import decode_report, encode_report
from molprof.analysis.reports.load import ReportOptions, kept_report, load_report
from molprof.common import errors
from molprof.common.memory import processors
from molprof.common.process import call_line, why_failed

_OK, _FAILED = b"+", b"-"


def load_reports(paths: Sequence[Path], options: ReportOptions) -> list[Report]:
    """Return the reports of `paths` in their order; as many at a time as there are processors.

    A path given twice is read once. Raises what `load_report` raises, for the first path that fails.
    """
    reports = {path: kept_report(path, options) for path in paths}
    missing = [path for path, report in reports.items() if report is None]
    workers = min(len(missing), processors())
    if workers < 2:
        reports.update({path: load_report(path, options) for path in missing})
    else:
        options = replace(options, processes=max(1, processors() // workers))
        with ThreadPoolExecutor(max_workers=workers) as pool:
            made = pool.map(lambda path: _remote(path, options), missing)
            reports.update(zip(missing, made, strict=True))
    return [report for path in paths if (report := reports[path]) is not None]


def _remote(path: Path, options: ReportOptions) -> Report:
    if str(path) == "-":  # only this process has standard input
        return load_report(path, options)
    request = msgspec.json.encode([str(path), asdict(options)])
    process = subprocess.run(call_line(f"{__name__}:serve"), input=request, capture_output=True, check=False)
    if process.returncode == 0 and process.stdout[:1] == _OK:
        return decode_report(process.stdout[1:])
    if process.returncode == 0 and process.stdout[:1] == _FAILED:
        kind, message, hint = msgspec.json.decode(process.stdout[1:])
        raise getattr(errors, kind)(message, hint=hint)
    reason = why_failed(process.returncode, process.stderr.decode("utf-8", "replace"))
    raise errors.EngineError(
        f"the process that read {path} failed: {reason}",
        hint="if memory ran out, read the traces one by one with molprof report",
    )


def serve() -> None:
    """In the other process: read a request on standard input, write its answer to standard output."""
    path, options = msgspec.json.decode(sys.stdin.buffer.read())
    try:
        answer = _OK + encode_report(load_report(Path(path), ReportOptions(**options)))
    except errors.MolprofError as error:
        answer = _FAILED + msgspec.json.encode([type(error).__name__, str(error), error.hint])
    sys.stdout.buffer.write(answer)
