"""`molprof predict`: a run on a GPU that this machine lacks."""

from __future__ import annotations

from pathlib import Path

import click

from molprof import api
from molprof.analysis.reader import Reading
from molprof.commands.command import Command
from molprof.commands.options import TRACE, ResultOptions, all_option, note, refuse, result_options, uncached_options
from molprof.common.errors import UsageError


@click.command("predict", cls=Command)
@click.argument("trace", type=TRACE, required=False)
@click.option("--device", "gpu", metavar="NAME", help="The GPU: h100, a100, b200, mi300x, ... or a device's name.")
@click.option("--list", "is_list", is_flag=True, help="List the GPUs and figures that can be predicted; without TRACE.")
@click.option(
    "--what-if", "what_if", multiple=True, metavar="CHANGES",
    help="How long it would take if something were faster, as for molprof report by path --what-if. Repeatable.",
)  # fmt: skip
@click.option(
    "--batches", metavar="SIZES",
    help="The same at other batch sizes: 1,8,32 or 1:256, which doubles from 1 to 256. Sizes that the GPU's memory "
    "cannot hold are left out.",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), help="Rows of the run's batch, if the run does not record them.")
@click.option(
    "--beside",
    type=TRACE,
    metavar="RUN",
    help="With --batches, a run of other rows, to compare its shapes with those predicted.",
)
@click.option(
    "--measured", multiple=True, type=TRACE, metavar="FILE",
    help="The time of an operator that molprof replay RUN --op N --format json measured on the GPU. Repeatable.",
)  # fmt: skip
@all_option
@uncached_options
@result_options()
def command(
    trace: Path | None, gpu: str | None, is_list: bool, what_if: tuple[str, ...], batches: str | None,
    rows: int | None, beside: Path | None, measured: tuple[Path, ...], whole: bool, reading: Reading,
    result: ResultOptions,
) -> None:  # fmt: skip
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
      molprof predict run.json.gz --device h100 --batches 1:256 --format html -o sizes.html
      molprof predict run.json.gz --device a100 --format json
      molprof predict --list
    """
    if is_list:
        if trace is not None or gpu is not None:
            raise UsageError("--list takes neither TRACE nor --device", hint="molprof predict --list")
        others = {"what_if": what_if, "batches": batches, "rows": rows, "beside": beside, "measured": measured}
        refuse("--list", "molprof predict --list", **others)
        result.check()
        from molprof.analysis.documents.predict import devices_document

        result.deliver(devices_document())
        return
    if trace is None:
        raise click.MissingParameter(param_hint="'TRACE'", param_type="argument")
    if gpu is None:
        raise click.MissingParameter(param_hint="'--device'", param_type="option")
    result.check([trace])
    if batches is None and (rows is not None or beside is not None):
        raise UsageError("--rows and --beside are of other batch sizes", hint="with --batches 1:256")
    if batches is not None and (what_if or measured):
        raise UsageError("--what-if and --measured are of the run as it is", hint="without --batches")
    from molprof.analysis.documents.predict import predict_document

    if batches is None:
        prediction, sizes = api.predict(trace, gpu, reading, what_if, measured), None
    else:
        prediction, sizes = api.predict_sizes(trace, gpu, batches, rows, beside, reading)
    note(*prediction.run.info.notes())
    result.deliver(predict_document(prediction, sizes), whole)
