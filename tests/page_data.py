"""Reports and comparisons that pages and figures are made of in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_trace
from msgspec.structs import replace

import molprof.analysis.render
from molprof.analysis.compare import Comparison, compare
from molprof.analysis.compare.difference import named_parts
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import PassTimes, RepeatFigures, StepTime

# Text that would run, or load something, if any of it reached a page as it is.
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<svg onload=alert(2)>",
    "<img src=x onerror=alert(3)>",
    "\"' onmouseover=alert(4) x='",
    "javascript:alert(5)",
    "{{ 7 * 7 }}${7*7}$x^2$",
    "]]><!--",
    "\x1b[31m\u202e\r\n\x00",
)

PARTS = {
    "setup.template": 20_000_000,
    "tokens.useful": 900_000_000,
    "tokens.junk": 60_000_000,
    "steps.idle": -30_000_000,
    "forward.gpu": 100_000_000,
    "forward.launch": 250_000_000,
    "processor.sync": 79_000_000,
    "text": 1_000_000,
}


def render(subject: Report | Comparison, form: str = "table") -> str:
    """A report or comparison in a format, as its command prints it."""
    document = report_document(subject) if isinstance(subject, Report) else comparison_document(subject)
    return molprof.analysis.render.render(document, form)


def report_of(folder: Path, content: dict[str, Any], name: str = "trace") -> Report:
    return tiny_trace.report(folder / f"{name}.json", content)


def foreign(folder: Path) -> Report:
    """A trace that another program recorded: two kernels, no steps."""
    events = [
        tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=1),
        tiny_trace.work("kernel", "gemm", 5, 2, 1),
        tiny_trace.work("kernel", "fmha", 9, 1, 2),
    ]
    return report_of(folder, {"traceEvents": events}, "foreign")


def timed(report: Report, median_ns: int, spread_ns: int, repeats: int = 3) -> Report:
    """The report with other unprofiled times, its phases in proportion."""
    assert report.run is not None
    assert report.run.wall_ns.median is not None
    scale = median_ns / report.run.wall_ns.median
    phases = {
        name: replace(phase, wall_ns=None if phase.wall_ns is None else round(phase.wall_ns * scale))
        for name, phase in report.run.phases.items()
    }
    points = tuple(StepTime(step, step, 2, 1_000_000 + step, 900_000, 1_200_000) for step in range(60))
    wall = PassTimes(median_ns, median_ns - spread_ns, median_ns + spread_ns, repeats)
    # As far apart as the spread says, with the median in the middle.
    walls = [
        median_ns + round(spread_ns * (2 * place / (repeats - 1) - 1)) if repeats > 1 else median_ns
        for place in range(repeats)
    ]
    figures = tuple(RepeatFigures(wall_ns, {}, None, None) for wall_ns in walls)
    return replace(report, run=replace(report.run, wall_ns=wall, phases=phases, step_times=points, repeats=figures))


def two_runs(folder: Path, parts: dict[str, int] | None = None, spread_ns: int = 50_000_000) -> Comparison:
    """LLaMA in 4.000 s against Qwen in 5.380 s, the difference in the parts given."""
    content = tiny_trace.document()
    content["molprof"]["model"].update(name="qwen", family="qwen3")
    llama = timed(report_of(folder, tiny_trace.document(), "llama"), 4_000_000_000, spread_ns)
    qwen = timed(report_of(folder, content, "qwen"), 5_380_000_000, spread_ns)
    comparison = compare([llama, qwen])
    (difference,) = comparison.differences
    assert difference is not None
    parts = PARTS if parts is None else parts
    residual_ns = difference.wall_ns - sum(parts.values())
    changed = replace(difference, parts=parts, residual_ns=residual_ns, causes=named_parts(parts), intervals={})
    return replace(comparison, differences=(changed,))


def hostile_document(text: str) -> dict[str, Any]:
    """The tiny run with `text` in every name that a trace brings along."""
    content = tiny_trace.document()
    for event in content["traceEvents"]:
        if event.get("cat") in ("kernel", "cpu_op", "gpu_memcpy", "cuda_runtime"):
            event["name"] = f"{event['name']} {text}"
    content["deviceProperties"] = [{"name": text}]
    manifest = content["molprof"]
    manifest["model"].update(name=f"a{text}", tokenizer=text, family=text)
    manifest["generation"].update(processor=text, placeholder=text)
    manifest["environment"].update(gpu=text, torch=text)
    manifest["molecules"][0].update(smiles=text, problem=text)
    return content
