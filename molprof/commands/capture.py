"""`molprof capture`: record a trace of generation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from molprof.commands.capture_runs import run_settings
from molprof.commands.options import check_ending, file_option, make_folder, note
from molprof.commands.progress import Progress
from molprof.commands.run_options import Pair, argument_option, format_options, sampling_asked
from molprof.commands.submission import Submission, Submittable, own_arguments, submit_command, submit_options
from molprof.common.errors import UsageError
from molprof.common.files import next_free
from molprof.common.settings import (
    ATTENTION,
    COMPILE,
    DTYPES,
    HELP,
    KV_CACHES,
    SAMPLING,
    WEIGHTS,
    CaptureSettings,
)
from molprof.common.text import escaped
from molprof.common.threads import let_threads_sleep
from molprof.common.values import bytes_text
from molprof.profiler.capture.tracefile import ENDINGS, OutputFile, trace_stem
from molprof.profiler.models.architecture import NAMED, check_folder

_F = TypeVar("_F", bound=Callable[..., Any])
_SIZES = " or ".join(f"{size} ({preset})" for preset, sizes in NAMED.items() for size in sizes)


def _setting(*names: str, **details: Any) -> Callable[[_F], _F]:
    """An option of the same name as a field of `CaptureSettings`, whose default it shows."""
    name = next((name for name in names if not name.startswith("-")), names[0].strip("-").replace("-", "_"))
    default = getattr(CaptureSettings, name, None)
    if default is not None and "is_flag" not in details:
        details |= {"default": default, "show_default": True}
    return click.option(*names, **details)


@click.command("capture", cls=Submittable)
@_setting(
    "--model",
    required=True,
    metavar="NAME",
    help="Preset (qwen, llama), folder, hub id, or a name of molprof.toml; or several: NAME,NAME.",
)
@_setting(
    "--size",
    metavar="SIZE",
    help=f"Spread a preset over another size, the same function: {_SIZES}, or numbers, such as layers=8,hidden=512.",
)
@_setting(
    "--weights",
    type=click.Choice(WEIGHTS),
    help="Weights of a preset. Random ones fit any size, but make tokens and drift meaningless.",
)
@_setting("--tokenizer", metavar="NAME", help="Preset, folder or hub id.  [default: the model's own]")
@click.option(
    "--lp/--no-lp",
    default=None,
    help="Constrain with the processor generic, a position template with a block-list, or not at all."
    "  [default: not at all]",
)
@_setting(
    "--processor",
    metavar="NAME",
    help="Constrain with this processor (molprof presets lists them, package.module:Class is your own), or none; or"
    " several: none,NAME,NAME.",
)
@argument_option
@_setting("--placeholder", metavar="TEXT", help="What templates write for a coordinate, such as 0.000,0.000,0.000.")
@_setting(
    "-n",
    "count",
    type=int,
    metavar="N",
    help="Take the first N molecules or prompts.  [default: all of FILE, or the 64 built-in molecules]",
)
@_setting("--batch-size", metavar="N", help="Molecules to generate together.")
@_setting(
    "--smiles",
    type=click.Path(),
    metavar="FILE[:COLUMN]",
    help="SMILES, one per line, or in CSV, TSV, JSON, JSON lines or a pickle of plain data.  [COLUMN: smiles, else the"
    " first]",
)
@_setting("--prompts", type=click.Path(), metavar="FILE", help="File with one plain-text prompt per line.")
@format_options
@_setting("--generations", metavar="K", help="Generate each molecule K times.")
@_setting("--strict", is_flag=True, help="Refuse a SMILES that RDKit cannot read instead of skipping it.")
@_setting("--sampling", type=click.Choice(SAMPLING))
@_setting("--temperature", help="Divide the logits; implies --sampling sample, as do the next three.")
@_setting("--top-p", type=float, help="Draw from the likeliest tokens of this total probability. They combine.")
@_setting("--top-k", type=int, help="Draw from this many of the likeliest tokens.")
@_setting("--min-p", type=float, help="Draw from tokens with this share of the largest probability or more.")
@_setting("--seed", help="Seed for sampling.")
@_setting("--attention", type=click.Choice(ATTENTION))
@_setting("--kv-cache", type=click.Choice(KV_CACHES))
@_setting(
    "--max-cache-length",
    type=int,
    metavar="N",
    help=f"{HELP['max_cache_length']}  [default: what the longest batch needs]",
)
@_setting("--pad-multiple", "padding_multiple", metavar="N", help=HELP["padding_multiple"])
@_setting(
    "--sort/--no-sort",
    default=None,
    help="Batch molecules of similar length, longest first, or keep their order.  [default: sort molecules]",
)
@_setting("--forced-runs", is_flag=True, help="Append forced tokens in the forward of the token before them.")
@_setting("--drop-finished", is_flag=True, help="Drop finished rows from the batch.")
@_setting(
    "--compile",
    type=click.Choice(COMPILE),
    help="Compile the forward of decode steps; requires --kv-cache static. auto: on a GPU.",
)
@_setting("--dtype", type=click.Choice(DTYPES))
@_setting("--tf32", is_flag=True, help=HELP["tf32"])
@_setting("--cudnn-benchmark", is_flag=True, help=HELP["cudnn_benchmark"])
@_setting("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.")
@_setting("--max-new-tokens", type=int, metavar="N", help="Most tokens of an answer.  [default: what templates need]")
@_setting("--repeats", metavar="N", help="Timed passes, without the profiler.")
@_setting("--warmup", metavar="N", help="Warm-up passes before the timed ones.")
@_setting(
    "--window",
    type=Pair("FIRST:LAST", "20:39"),
    help="Steps of the first batch to record.  [default: 20 from step 20 on]",
)
@_setting("--full", is_flag=True, help="Record every step of every batch; the trace gets large.")
@_setting("--modules", is_flag=True, help="Record modules too, for molprof report --by module.")
@_setting("--stacks", is_flag=True, help="Record modules and Python functions too, for molprof report --by.")
@_setting(
    "--disagreement", is_flag=True, help="Record what the model would have chosen, token by token, in an untimed pass."
)
@_setting(
    "--template-threads",
    type=int,
    metavar="N",
    help="Threads that build templates.  [default: SLURM_CPUS_PER_TASK, else half the cores and 1; at most 8]",
)
@_setting("--template-cache", is_flag=True, help="Keep the template of a molecule that a pass generates again.")
@_setting("--threads", type=int, metavar="N", help="CPU threads for torch.  [default: one core fewer than there are]")
@_setting("--trust-remote-code", is_flag=True, help="Let a model from the hub run its own code.")
@file_option(*ENDINGS, folder_for="several runs", default="a new file named by what runs")
@submit_options
@click.pass_context
def command(
    context: click.Context, /, output: Path | None, force: bool, submission: Submission, **options: Any
) -> None:
    """Generate molecules, measure the time without the profiler, then record some of the steps.

    Warm-up and timed passes run first, without the profiler. One more pass is recorded, by default 20 decode steps of
    the first batch. OUT holds these steps, all tokens, and the settings and times of the run.

    With several models or processors, OUT is a folder that gets a trace of each run. The timed passes of all runs take
    turns, in random order, so that a machine that changes its speed changes all runs alike: compare such traces rather
    than those of separate captures. A name twice shows the noise.

    \b
    Examples:
      molprof capture --model qwen --lp
      molprof capture --model llama --no-lp -n 16 --batch-size 16 -o llama.json.gz
      molprof capture --model qwen --processor none,generic,grammar -o runs
      molprof capture --model qwen,llama --processor none,generic -o runs
      molprof capture --model qwen --lp --forced-runs -o qwen-jump.json.gz
      molprof capture --model qwen --size 0.6b --lp --device cuda -o qwen-0.6b.json.gz
      molprof capture --model qwen --processor generic --window 0:9 -o prefill.json.gz
      molprof capture --model ./my-model --processor my_package:make --prompts ask.txt --max-new-tokens 64 -o ask.json
      molprof capture --model qwen --processor my_package:Constraint --processor-arg top=5 -o mine.json.gz
      molprof capture --model ./my-model --lp --smiles mine.smi --device cuda -o mine.json.gz
      molprof capture --model qwen --lp --smiles set.csv:canonical_smiles -n 100 -o set.json.gz
      molprof capture --model ./my-model --lp --prompt-format 'Molecule: {smiles}\\n' \\
        --answer-format '<mol>{atom}<{x} {y} {z}>...</mol>' -o tags.json.gz
      molprof capture --model mine --lp --submit h100 --slurm time=2:00:00 -o mine.json.gz
    """
    options["sampling"] = sampling_asked(context)
    runs = run_settings(submission.project, **options)
    several = len(runs) > 1
    if output is None:
        if submission.cluster is not None:
            raise UsageError("a capture on a cluster needs a name for its trace", hint="-o OUT")
    elif not several:
        check_ending(output, ENDINGS)
    elif output.name.lower().endswith(ENDINGS):
        raise UsageError(f"{output} is one file, for {len(runs)} runs", hint="name a folder with -o DIR")
    else:
        make_folder(output)
    line = ("molprof", *sys.argv[1:])
    asked = [
        (settings, OutputFile(next_free(Path(name)), command=line, chosen=True))
        if output is None
        else (settings, OutputFile(output / name if several else output, force, line))
        for name, settings in runs.items()
    ]
    for settings, trace in asked:
        named = (settings.prompts, settings.smiles, (settings.smiles or "").rpartition(":")[0])
        trace.check(map(Path, filter(None, named)))
    if asked[0][0].strict:  # tells of a bad line before torch is imported, which takes seconds
        from molprof.profiler.molecules.prompts import read_inputs

        read_inputs(asked[0][0])
    if submission.cluster is not None and output is not None:
        for settings, _ in asked:
            check_folder("model", settings.model)
            check_folder("tokenizer", settings.tokenizer)
        from molprof.profiler.cluster.job import Task

        task = Task(trace_stem(output.name), ("capture", *own_arguments(context)), str(output.absolute()))
        submit_command(submission, "capture", [task])
        return
    let_threads_sleep()
    from molprof.profiler.capture.capture import capture_together

    written: list[Path] = []
    try:
        with Progress() as progress:
            for result in capture_together(asked, progress):
                written.append(result.path)
                name = f"{trace_stem(result.path.name)}: " if several else ""
                for text in result.notes:
                    progress.line(escaped(name + text))
                size = bytes_text(result.path.stat().st_size)
                tail = "" if several else f"; next: molprof report {shlex.quote(str(result.path))}"
                progress.line(escaped(f"{name}wrote {result.path} ({size}){tail}"))
    except KeyboardInterrupt:
        if not written:
            raise
        note(f"interrupted; {len(written)} of {len(asked)} traces are written")
        context.exit(130)
    if several:
        note(f"next: molprof compare {shlex.join(map(str, written))}")
