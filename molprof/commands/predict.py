"""`molprof predict`: what a run would be on a GPU that is not here."""

from __future__ import annotations

from pathlib import Path

import click

from molprof import api
from molprof.analysis.reader import Reading
from molprof.commands.options import TRACE, Result, note, result_options, uncached_options


@click.command("predict")
@click.argument("trace", type=TRACE)
@click.option(
    "--device", "gpu", required=True, metavar="NAME", help="The GPU: h100, a100, b200, mi300x, ... or a device's name."
)
@click.option(
    "--what-if", "what_if", multiple=True, metavar="CHANGES",
    help="How long it would take if something were faster, as for molprof report --what-if. Repeatable.",
)  # fmt: skip
@uncached_options
@result_options()
def command(trace: Path, gpu: str, what_if: tuple[str, ...], reading: Reading, result: Result) -> None:
    """Predict launches, GPU time, the GPU's busy share and what limits the run in TRACE for another GPU.

    TRACE is a run on a CPU, on torch's meta device or on another GPU, recorded with the shapes of operators' arguments
    (molprof capture --shapes, torch.profiler's record_shapes=True). Each operator becomes the kernels and times
    that recorded traces of GPUs show for it, and a replay makes steps of them. Every figure has an interval, from the
    errors of predictions of models whose traces were left out. Where much time lies in operators that no trace has
    shown, there is no prediction.

    \b
    Examples:
      molprof capture --model qwen --lp --shapes -o run.json.gz
      molprof predict run.json.gz --device h100
      molprof predict run.json.gz --device mi300x --what-if elementwise=0.5x
      molprof predict run.json.gz --device a100 --format json
    """
    result.check([trace])
    from molprof.analysis.documents.predict import predict_document

    found = api.predict(trace, gpu, reading, what_if)
    note(*found.run.info.notes())
    result.deliver(predict_document(found))
