"""Captures of random tiny models, and the events of their traces."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

from tiny import loaded

from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.capture import interleaved
from molprof.profiler.capture.passes import Report
from molprof.profiler.capture.run import CapturedRun, CaptureResult
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.prompts import Prompts, read_prompts
from molprof.profiler.recording.tracefile import OutputFile

FILE = "CC=O acetaldehyde\nxx\nC methane\nOC=C\n"


def inputs(folder: Path, count: int = 3, text: str = FILE) -> Prompts:
    path = folder / "in.smi"
    path.write_text(text)
    return read_prompts(path, count)


def settings(**changes: Any) -> CaptureSettings:
    base = CaptureSettings("llama", batch_size=2, repeats=2, warmup=1, count=3, sort=False)
    return dataclasses.replace(base, **changes)


def captured(
    output: Path | OutputFile,
    asked: CaptureSettings,
    prompts: Prompts | None = None,
    model: LoadedModel | None = None,
    report: Report = lambda progress: None,
) -> CaptureResult:
    """A capture of `model`, or else of the tiny llama, of `prompts`, or else of `inputs`."""
    trace = output if isinstance(output, OutputFile) else OutputFile(output, True, ("molprof", "capture"))
    given = prompts or inputs(trace.path.parent)
    (result,) = interleaved([CapturedRun(asked, trace, model or loaded("llama"), given, report)])
    return result


def events(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    text = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    trace = json.loads(text)
    return trace, trace["traceEvents"]


def of(trace: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in trace if event.get("cat") == category]
