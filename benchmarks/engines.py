"""vLLM plain and constrained, by each of its mask backends: one engine for each preset, all runs taking turns.

python benchmarks/engines.py                             both presets, 1, 8 and 32 requests, as a table in Markdown
python benchmarks/engines.py --models qwen --requests 8 --repeats 10 --traces traces

It runs where vLLM is installed. All requests of a run arrive together. Times are of the timed passes: first token and
between tokens are medians over the requests of a pass; "over plain" is that of the time between tokens over that of the
run without a constraint, paired round by round, with its interval, "~" where the interval holds 1. Masks: the phase
`processor` of a step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shared import keep, parser, progress, table

from molprof import api
from molprof.analysis.figures.catalog import COMPARED
from molprof.common.engine_settings import VLLM
from molprof.common.errors import MolprofError
from molprof.common.settings import CaptureSettings
from molprof.common.values import by_unit, per
from molprof.profiler.capture.capture import capture_together
from molprof.profiler.recording.tracefile import OutputFile

SCHEMA = {
    "type": "object",
    "properties": {"element": {"enum": ["C", "N", "O"]}, "charge": {"type": "integer", "minimum": -3, "maximum": 3}},
    "required": ["element", "charge"],
    "additionalProperties": False,
}
KINDS = {"schema": "JSON schema", "regex": "regex"}
REGEX = r"<-?[0-9]\.[0-9]{4},-?[0-9]\.[0-9]{4},-?[0-9]\.[0-9]{4}>"
BETWEEN, FIRST, MASKS = "between_tokens_p50_ns", "first_token_p50_ns", "processor_ns"
HEADINGS = (
    "preset", "constraint", "backend", "requests", "first token", "between tokens", "over plain", "masks per step",
    "share", "valid",
)  # fmt: skip


def runs(model: str, options: argparse.Namespace, folder: Path) -> dict[tuple[int, str, str], CaptureSettings]:
    """Return the settings of each run, by requests, constraint and backend."""
    found: dict[tuple[int, str, str], CaptureSettings] = {}
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    for count in options.requests:
        asked = folder / f"ask-{count}.txt"
        asked.write_text("".join(f"[SMILES]{'C' * (1 + line)}O[/SMILES]\n" for line in range(count)))
        base = {"prompts": str(asked), "batch_size": max(options.requests), "max_new_tokens": options.max_new_tokens}
        base |= {"engine": VLLM, "repeats": options.repeats, "warmup": 1, "size": options.size, "dtype": options.dtype}
        found[count, "none", "none"] = CaptureSettings(model, **base)
        for kind, value in {"schema": str(folder / "schema.json"), "regex": REGEX}.items():
            for backend in options.backends:
                found[count, kind, backend] = CaptureSettings(model, processor=backend, **{kind: value}, **base)
    return found


def captured(model: str, options: argparse.Namespace, folder: Path) -> dict[tuple[int, str, str], Path]:
    """Return the trace of each run; one that the backend refuses is told, and has none."""
    asked = runs(model, options, folder)
    paths = {key: folder / f"{model}-{'-'.join(map(str, key))}.json.gz" for key in asked}
    try:
        for result in capture_together([(asked[key], OutputFile(path, True)) for key, path in paths.items()]):
            progress(f"wrote {result.path}")
    except MolprofError as problem:
        progress(str(problem))
    return {key: path for key, path in paths.items() if path.exists()}


def rows(model: str, traces: dict[tuple[int, str, str], Path]) -> Iterator[tuple[str, ...]]:
    for (count, kind, backend), path in traces.items():
        compared = api.compare(traces[count, "none", "none"], path) if kind != "none" else None
        report = api.report(path)
        first, between, masks = (by_unit("ns", COMPARED[name].value(report)) for name in (FIRST, BETWEEN, MASKS))
        over = "1"
        if compared is not None:
            row = next(row for row in compared.rows if row.figure.id == BETWEEN)
            interval = row.ratio_intervals[1]
            over = f"{'' if row.significant[1] else '~ '}{by_unit('number', row.ratios[1])}"
            over += "" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})"
        run = report.run
        assert run is not None
        share = by_unit("ratio", per(run.phases["processor"].wall_ns, run.wall_ns.median))
        valid = "" if run.valid_molecules is None else f"{run.valid_molecules} of {run.molecules}"
        yield (model, KINDS.get(kind, "none"), backend, str(count), first, between, over, masks, share, valid)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--models", default="qwen,llama", type=lambda text: text.split(","))
    made.add_argument("--backends", default="xgrammar,guidance,outlines", type=lambda text: text.split(","))
    made.add_argument("--requests", default="1,8,32", type=lambda text: list(map(int, text.split(","))))
    made.add_argument("--max-new-tokens", type=int, default=32)
    made.add_argument("--repeats", type=int, default=6)
    made.add_argument("--size", help="size of the presets, as of molprof capture")
    made.add_argument("--dtype", default=CaptureSettings("qwen").dtype)
    made.add_argument("--traces", type=Path, help="keep the traces in this folder")
    made.add_argument("-o", "--output", type=Path, help="keep the rows of one preset in this file too, as JSON")
    options = made.parse_args()
    if len(options.models) > 1 and options.output is not None:
        made.error("-o takes the rows of one preset: --models qwen")
    if len(options.models) > 1:  # an engine of vLLM leaves the process only with it
        arguments = [sys.executable, *sys.argv]
        for model in options.models:
            subprocess.run([*arguments, "--models", model], check=True)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.traces or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        (model,) = options.models
        found = list(rows(model, captured(model, options, folder)))
        print(table(HEADINGS, found, left=3))
        keep(options.output, [dict(zip(HEADINGS, row, strict=True)) for row in found])


if __name__ == "__main__":
    main()
