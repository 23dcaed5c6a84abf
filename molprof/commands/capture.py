"""`molprof capture`: record a trace of generation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import UNSET

from molprof.commands.options import ResultOptions, check_ending, file_option, make_folder, note, with_options
from molprof.commands.progress import ProgressPrinter
from molprof.commands.run_options import check_arguments, sampling_asked, setting_option
from molprof.commands.submission import Submission, Submittable, own_arguments, submit_command, submit_options
from molprof.common.engine_settings import BACKENDS, CONSTRAINTS, ENGINES, VLLM
from molprof.common.errors import RunError, UsageError
from molprof.common.files import next_free
from molprof.common.measured import MeasuredRun
from molprof.common.memory import let_threads_sleep
from molprof.common.settings import LP_PROCESSOR, LP_WORD, NO_PROCESSOR, SETTINGS, WHOLE_TEXT, CaptureSettings
from molprof.common.text import escaped
from molprof.common.values import bytes_text
from molprof.profiler.constraints import missing_engines, whole_of
from molprof.profiler.models.architecture import check_folder, check_preset
from molprof.profiler.project import Project
from molprof.profiler.recording.tracefile import ENDINGS, OutputFile, default_name, trace_stem

_F = TypeVar("_F", bound=Callable[..., Any])
ALL = "all"  # the processors that take the constraint
# What a run without a processor has in place of the others'.
_OF_CONSTRAINT = {"disagreement": False, "placeholder": None, "grammar_file": None}
_LP = click.option(
    "--lp/--no-lp",
    default=None,
    help="Constrain with the processor generic, a position template with a block-list, or not at all."
    "  [default: not at all]",
)


def _setting_options(function: _F) -> _F:
    """Add an option for each setting, and --lp next to --processor, for which it is short."""
    options = {name: setting_option(row) for name, row in SETTINGS.items()}
    processor = options["processor"]
    options["processor"] = lambda command: _LP(processor(command))
    return with_options(function, *options.values())


@click.command("capture", cls=Submittable)
@_setting_options
@file_option(*ENDINGS, folder_for="several runs, or a name without an ending", default="a new file named by what runs")
@submit_options
@click.pass_context
def command(
    context: click.Context, /, output: Path | None, force: bool, submission: Submission, **options: Any
) -> None:
    """Generate texts, measure the time without the profiler, then record some of the steps.

    Warm-up and timed passes run first, without the profiler. One more pass is recorded, by default 20 decode steps of
    the first batch. OUT holds these steps, all tokens, and the settings and times of the run.

    --processor all measures none and every installed constraint engine that takes the --schema, --regex, --choices or
    --grammar-file. Captures of several processors of one constraint end with a ranking.

    With several models or processors, OUT is a folder that gets a trace of each run. The timed passes of all runs take
    turns, in random order, so that a machine that changes its speed changes all runs alike: compare such traces rather
    than those of separate captures. A name twice shows the noise.

    \b
    Examples:
      molprof capture --model qwen --lp
      molprof capture --model llama --no-lp -n 16 --batch-size 16 -o llama.json.gz
      molprof capture --model qwen --processor none,generic,grammar -o runs
      molprof capture --model qwen,llama --processor none,generic -o runs
      molprof capture --model qwen --processor all --schema person.json --prompts ask.txt --max-new-tokens 64 -o runs
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
    every = ALL in (options["processor"] or "").split(",")
    if every:
        options["processor"], left_out = _every_engine(options["processor"], options)
        note(*left_out)
    runs = run_settings(submission.project, **options)
    several, folder = len(runs) > 1, False
    if output is None:
        if submission.cluster is not None:
            raise UsageError("a capture on a cluster needs a name for its trace", hint="-o OUT")
    elif several and output.name.lower().endswith(ENDINGS) and not output.is_dir():
        raise UsageError(f"{output} is one file, for {len(runs)} runs", hint="name a folder with -o DIR")
    elif folder := several or output.is_dir() or not output.suffix:
        make_folder(output)
    else:
        check_ending(output, ENDINGS)
    line = ("molprof", *sys.argv[1:])
    runs_to_make = [
        (settings, OutputFile(next_free(Path(name)), command=line, chosen=True))
        if output is None
        else (settings, OutputFile(output / name if folder else output, force, line))
        for name, settings in runs.items()
    ]
    for settings, trace in runs_to_make:
        named = (settings.prompts, settings.requests, settings.smiles, (settings.smiles or "").rpartition(":")[0])
        trace.check(map(Path, filter(None, named)))
    if runs_to_make[0][0].strict:  # tells of a bad line before torch is imported, which takes seconds
        from molprof.profiler.molecules.prompts import read_inputs

        read_inputs(runs_to_make[0][0])
    if submission.cluster is not None and output is not None:
        for settings, _ in runs_to_make:
            check_folder("model", settings.model)
            check_folder("tokenizer", settings.tokenizer)
        from molprof.common.jobs.job import Task

        task = Task(trace_stem(output.name), ("capture", *own_arguments(context)), str(output.absolute()))
        submit_command(submission, "capture", [task])
        return
    let_threads_sleep()
    from molprof.profiler.capture.capture import capture_together

    written: list[Path] = []
    measured: list[list[MeasuredRun]] = []
    problems: list[str] = []
    try:
        with ProgressPrinter() as progress:
            for result in capture_together(runs_to_make, progress, able_only=every):
                session = result.manifest.session
                together = UNSET if session is None else session.measured
                if together is not UNSET and together not in measured:
                    measured.append(together)
                written.append(result.path)
                problems += [f"{result.path}: {problem}" for problem in result.failures]
                name = f"{trace_stem(result.path.name)}: " if several else ""
                for text in result.notes:
                    progress.line(escaped(name + text))
                size = bytes_text(result.path.stat().st_size)
                tail = "" if several else f"; next: molprof report {shlex.quote(str(result.path))}"
                progress.line(escaped(f"{name}wrote {result.path} ({size}){tail}"))
    except KeyboardInterrupt:
        if not written:
            raise
        note(f"interrupted; {len(written)} of {len(runs_to_make)} traces are written")
        context.exit(130)
    finally:
        if whole_of(runs_to_make[0][0]) is not None:
            _show_rankings(measured)
    if several:
        note(f"next: molprof compare {shlex.join(map(str, written))}")
    if problems:
        hint = "the trace is written, and its certificate says so"
        raise RunError(f"the passes contradict each other: {problems[0]}", hint)


def _show_rankings(measured: Iterable[Sequence[MeasuredRun]]) -> None:
    """Print the ranking of the written processors of each model."""
    from molprof.analysis.documents.ranking import ranking_document

    for runs in measured:
        if len(runs) > 1:
            ResultOptions().deliver(ranking_document(runs))


def _every_engine(names: str, options: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the names with all installed engines in place of `all`, and a line for each missing one."""
    if not any(options[name] for name in CONSTRAINTS) and options["engine"] != VLLM:
        raise UsageError(
            "--processor all is for engines that constrain, and nothing says to what",
            hint="--schema, --regex, --choices or --grammar-file",
        )
    missing: dict[str, str] = {}
    engines: tuple[str, ...] = BACKENDS
    if options["engine"] != VLLM:
        missing = missing_engines()
        takes = ENGINES if options["grammar_file"] else WHOLE_TEXT
        engines = tuple(name for name in takes if name not in missing)
    each = [name.strip() for name in names.split(",")]
    chosen = [one for name in each for one in ((NO_PROCESSOR, *engines) if name == ALL else (name,))]
    lines = [f"{name} is left out: it is not installed (pip install {package})" for name, package in missing.items()]
    return ",".join(dict.fromkeys(chosen)), lines


def capture_settings(project: Project, lp: bool | None, **options: Any) -> CaptureSettings:
    """Return the options of the command as settings; a model's short name in the project selects its table."""
    chosen = options["processor"] or (LP_WORD if lp else NO_PROCESSOR)
    if lp is False and chosen != NO_PROCESSOR:
        raise click.UsageError(f"--no-lp and --processor {chosen} contradict each other; give one of them")
    lp_processor = project.model(options["model"]).processor or LP_PROCESSOR
    options["processor"] = {NO_PROCESSOR: None, LP_WORD: lp_processor}.get(chosen, chosen)
    texts = (options.get(name) for name in ("tokenizer", "prompt_format", "answer_format"))
    options |= project.asked(options["model"], *texts)
    if ":" not in (options["processor"] or ""):
        options["processor_args"] = ()  # of another run of this capture or sweep
    settings = CaptureSettings(**options)
    check_preset(settings)
    return settings


def run_settings(project: Project, model: str, processor: str | None, **options: Any) -> dict[str, CaptureSettings]:
    """Return the settings of each run by the name of its trace: every model with every processor, in that order."""
    models = [model] if Path(model).exists() else _names("--model", model)
    processors = [None] if processor is None else _names("--processor", processor)
    several = len(models) * len(processors) > 1
    by_name: dict[str, CaptureSettings] = {}
    for one in models:
        for chosen in processors:
            unconstrained = chosen == NO_PROCESSOR or not (chosen or options["lp"])
            # Those of the others.
            run_options = {**options, **_OF_CONSTRAINT} if several and unconstrained else options
            settings = capture_settings(project, model=one, processor=chosen, **run_options)
            path = next_free(Path(default_name(one, settings.processor)), lambda path: path.name in by_name)
            by_name[path.name] = settings
    processor_args = options["processor_args"]
    check_arguments(processor_args, any(settings.processor_args for settings in by_name.values()))
    return by_name


def _names(option: str, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if "" in names:
        raise UsageError(f"{option} {value!r} names nothing between its commas", hint=f"e.g. {option} NAME,NAME")
    return names
