"""`molprof bench`: measure configurations, each case in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from molprof.analysis.documents.plots import BENCH_PLOTS, plot_file
from molprof.commands import bench_masks, recommend
from molprof.commands.command import Group
from molprof.commands.options import (
    PLOT_FORMATS,
    PlotCommand,
    Read,
    Result,
    declared,
    grouped,
    note,
    number_option,
    path_option,
    plot_format,
    result_options,
    with_options,
    write,
)
from molprof.commands.progress import CaseLines
from molprof.commands.run_options import Seconds, check_arguments, pair, sampling_asked, setting_option
from molprof.commands.submission import Submission, Submittable, own_arguments, submit_command, submit_options
from molprof.common.errors import RunError, UsageError
from molprof.common.process import OK, UNSUPPORTED
from molprof.common.setting import Setting, rows
from molprof.common.settings import LP_PROCESSOR, LP_WORD, SETTINGS
from molprof.common.text import escaped
from molprof.common.values import counted
from molprof.profiler.bench.cases import BACKENDS, MASKS, Case, GenerateCase, MasksCase, case_id, undivided
from molprof.profiler.bench.grids import (
    AXES,
    BENCHMARKS,
    PHASES,
    SHAPES,
    Benchmark,
    generation_cases,
    read_shape,
    sdpa_cases,
    values_of,
)
from molprof.profiler.constraints import PROCESSORS, check_processor
from molprof.profiler.models.architecture import check_folder, check_preset
from molprof.profiler.molecules.files import split_column

if TYPE_CHECKING:
    from molprof.profiler.bench.facts import Facts

_F = TypeVar("_F", bound=Callable[..., Any])
_ALL = "all"
_REPEATS = 3
_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _values(choices: Sequence[str] | None = None, read: Callable[[str], Any] = str) -> Read:
    """Values with commas between them; `all` stands for all `choices`."""

    def values(text: str) -> tuple[Any, ...]:
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items:
            raise ValueError("names no value")
        if choices is not None:
            items = list(choices) if items == [_ALL] else items
            for item in items:
                if item not in choices:
                    raise ValueError(f"{item!r} is not one of {', '.join(choices)}, {_ALL}")
        try:
            return tuple(dict.fromkeys(map(read, items)))
        except ValueError:
            raise ValueError(f"{text!r} is not a list of {'whole ' * (read is int)}numbers") from None

    return Read(values, "N,M,..." if read is int else "A,B,...")


def _bytes(value: str) -> int:
    """A number of bytes, with K, M, G or T for powers of 1000."""
    text = value.strip().upper().removesuffix("B").removesuffix("I")
    unit = text[-1:] if text[-1:] in _SIZES else ""
    try:
        size = round(float(text.removesuffix(unit)) * _SIZES[unit])
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a size such as 12G") from None
    if size <= 0:
        raise ValueError(f"{value!r} is not above 0")
    return size


def _molecules(value: str) -> str:
    """FILE or FILE:COLUMN with molecules; the file, made absolute, exists."""
    path, column = split_column(value)
    found = os.fsdecode(_FILE(str(path)))
    return found if column is None else f"{found}:{column}"


def _listed(option: str, name: str, choices: Sequence[str] | None, default: str, text: str) -> Callable[[_F], _F]:
    return click.option(option, name, type=_values(choices), default=default, show_default=True, help=text)


_SDPA_OPTIONS = (
    click.option("--shape", "attention_shapes", type=_values(read=read_shape), metavar="BxHxKxSxD,...",
                 help="Batch, heads, KV heads, sequence, head size, e.g. 4x16x16x2048x64.  [default: by device]"),
    _listed("--backend", "backends", BACKENDS, ",".join(BACKENDS), "Kernels; auto leaves the choice to torch."),
    _listed("--phase", "phases", PHASES, ",".join(PHASES), "prefill: as many queries as keys, decode: one query."),
    _listed("--mask", "masks", MASKS, "none,padding",
            "none (a prefill is causal then), causal, or padding: a tensor as of a padded batch."),
    setting_option(SETTINGS["dtype"]),
)  # fmt: skip


@dataclass(frozen=True)
class Running:
    """How the cases of a benchmark run: the options that every benchmark has."""

    # fmt: off
    output: Path | None = declared(path_option(
        "-o", "--output", text="Add results to FILE, one JSON line each (.jsonl)."))
    resume: bool = declared("--resume", is_flag=True, help="Leave out cases that FILE has of this machine.")
    retry: bool = declared("--retry", is_flag=True, help="With --resume: run cases again that were not ok.")
    dry_run: bool = declared("--dry-run", "--list", "dry_run", is_flag=True, help="List the cases and run none.")
    repeats: int | None = declared(number_option(
        "--repeats", help="Processes per case, interleaved with those of the other cases.  [default: 3]"))
    seed: int = declared("--seed", default=0, show_default=True, help="Seed for the random order of cases.")
    limit: float = declared(
        "--limit", type=Seconds(), default=600.0, show_default=True, metavar="SECONDS",
        help="Kill a case that takes longer; it has timed out.")
    memory_limit: int | None = declared(
        "--memory-limit", type=Read(_bytes), metavar="SIZE",
        help="Kill a case that has more resident memory, such as 12G.  [default: 80 % of what is free]")
    bisect: bool = declared(
        "--no-bisect", "bisect", flag_value=False, default=True,
        help="Do not search for the largest batch that fits if a case is out of memory.")
    device: str = declared(setting_option(SETTINGS["device"]))
    threads: int | None = declared(number_option("--threads", help="CPU threads for torch.  [default: one per core]"))
    share: tuple[int, int] | None = declared(
        "--share", type=pair("K/N", "1/4", least=1),
        help="Run every N-th case, from the K-th on. Of masks: every N-th --schemas, with each engine.")
    submission: Submission = declared(submit_options)
    tasks: int | None = declared(number_option(
        "--tasks", help="With --submit: split the cases into N tasks of a job array.  [default: 1]"))
    # fmt: on


def _generation_options(benchmark: Benchmark) -> tuple[Callable[[_F], _F], ...]:
    """Return the options of a benchmark of whole generation: its grid, and what all its cases share."""
    values = values_of(benchmark)
    shared = (row for row in rows(GenerateCase).values() if row.bench)
    return *(_axis_option(row, values[name]) for name, row in AXES.items()), *map(_shared_option, shared)


def _axis_option(row: Setting, values: Sequence[object]) -> Callable[[_F], _F]:
    choices = ("off", "on") if row.type is bool else row.accepted
    texts = list(map(_value_text, values))
    default = _ALL if choices is not None and texts == list(choices) else ",".join(texts)
    kind = _values(choices, int if row.type is int and not row.optional else functools.partial(_value, row))
    return click.option(row.flag, row.name, type=kind, help=row.axis or row.help, default=default, show_default=True)


def _shared_option(row: Setting) -> Callable[[_F], _F]:
    files = {"smiles": Read(_molecules), "prompts": _FILE}
    kind = files.get(row.name, None if row.least is None else click.IntRange(row.least))
    return setting_option(row, **({} if kind is None else {"type": kind}))


def _value(row: Setting, text: str) -> Any:
    """A value by its text on the command line, as `_value_text` writes it."""
    if row.optional and text == "none":
        return None
    return text == "on" if row.type is bool else row.type(text)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


@click.group("bench", cls=Group)
def command() -> None:
    """Measure configurations, each case in a process of its own, so that none can stop the others.

    A case ends as ok, failed, timed out (killed at --limit, with its stack), out of memory (with the largest batch
    that fits), not measured (other programs took the memory) or unsupported (with the reason). Each result is added to
    a file at once; Ctrl-C keeps the results so far.

    \b
    Examples:
      molprof bench sdpa -o sdpa.jsonl
      molprof bench attention --model qwen --batch-size 16 -o bench.jsonl
      molprof bench matrix --attention sdpa,eager --kv-cache all --batch-size 1,8,32 --dry-run
      molprof bench matrix --attention all --submit h100 --tasks 4 -o bench.jsonl
      molprof bench masks -o masks.jsonl
      molprof bench show bench.jsonl
      molprof bench recommend bench.jsonl
    """


def _benchmark(
    name: str,
    text: str,
    options: Sequence[Callable[..., Any]],
    cases_of: Callable[[Running, dict[str, Any]], Callable[[bool], Sequence[Case]]],
) -> click.Command:
    """The command of a benchmark; `cases_of` returns its cases, by whether they run on a GPU."""

    @grouped(Running, "running")
    def invoke(running: Running, **given: Any) -> int:
        _check(running)
        cases = cases_of(running, {**given, "device": running.device, "threads": running.threads})
        if _submitted(running, len(undivided(cases(True)))):
            return 0
        from molprof.profiler.bench.facts import read_machine

        facts = read_machine(running.device, running.threads, cases(True))
        found = cases(facts.gpu)
        if running.repeats is None:  # of one constraint the answer is wanted at once
            is_one = all(isinstance(case, MasksCase) and case.is_one for case in found)
            running = replace(running, repeats=1 if is_one else _REPEATS)
        return run(found, facts, running)

    made = click.command(name, cls=Submittable, help=text, short_help=text.partition("\n")[0])
    return made(with_options(invoke, *options))


def _check(running: Running) -> None:
    if running.retry and not running.resume:
        raise click.UsageError("--retry requires --resume")
    if running.share is not None and running.submission.cluster is not None:
        raise click.UsageError("--share selects cases to run here; on a cluster, use --tasks N")
    if running.dry_run:
        return
    if running.output is None:
        raise click.UsageError("Missing option '-o'; --dry-run shows the cases without it.")
    from molprof.profiler.jobs.results_file import check_results

    check_results(running.output)


def _submitted(running: Running, cases: int) -> bool:
    """Submit the benchmark if that is asked for, and return whether it was.

    Each task runs a share of the cases into a file of its own, because several nodes cannot append to one file.
    Collecting puts the files together.
    """
    submission = running.submission
    if running.tasks is not None and submission.cluster is None:
        raise click.UsageError("--tasks requires --submit NAME")
    if submission.cluster is None or running.dry_run:
        return False
    from molprof.profiler.jobs.job import Task

    assert running.output is not None
    output, count = running.output.absolute(), running.tasks or 1
    if count > cases:
        raise UsageError(
            f"--tasks {count} for {counted(cases, 'case')}: some would have none", f"use at most --tasks {cases}"
        )
    parts = [output.with_name(f"{output.stem}.{number}-of-{count}{output.suffix}") for number in range(1, count + 1)]
    if not running.resume and (left := [part for part in parts if part.exists()]):
        raise UsageError(
            f"{left[0]} exists from an earlier submission",
            hint="--resume continues it; else delete it or use another -o",
        )
    for part in parts if running.resume and output.exists() else ():
        if not part.exists():  # collected and deleted: its results are in the output
            shutil.copyfile(output, part)
    context = click.get_current_context()
    # A task that is requeued continues where it was stopped.
    given = (context.params[item.name] for item in context.command.params if isinstance(item, click.Argument))
    own = ["bench", str(context.info_name), *filter(None, given)]
    own += [*own_arguments(context, "tasks", "output", "resume"), "--resume"]
    tasks = [
        Task(f"share-{number}", (*own, "--share", f"{number}/{count}", "-o", str(part)), str(part))
        for number, part in enumerate(parts, start=1)
    ]
    submit_command(submission, "bench", tasks, {"output": str(output), "parts": [str(part) for part in parts]})
    if not submission.detach:
        note(f"next: molprof bench show {shlex.quote(str(running.output))}")
    return True


def run(cases: Sequence[Case], facts: Facts, running: Running) -> int:
    """Run the cases, or list them; return the exit code."""
    from molprof.profiler.bench.facts import cases_document

    if running.share is not None:
        number, of = running.share
        cases = [case for group in undivided(cases)[number - 1 :: of] for case in group]
    if running.dry_run:
        Result().deliver(cases_document(cases, facts, running.repeats))
        return 0
    from molprof.common.process.guarded import Limits
    from molprof.profiler.bench.schedule import Plan, default_memory, run_plan
    from molprof.profiler.jobs.results_file import ResultsFile

    assert running.output is not None
    assert running.repeats is not None
    line, known = ("molprof", *sys.argv[1:]), set(map(case_id, cases))
    plan = Plan(
        tuple(cases), running.repeats, running.seed, Limits(running.limit, running.memory_limit or default_memory()),
        running.resume, running.retry, running.bisect, line,
    )  # fmt: skip
    lines = CaseLines()
    with contextlib.closing(ResultsFile(running.output)) as results:
        before = counted(len(results.before.results), "result")
        if results.before.results and not running.resume:
            note(f"adding to {before} in {running.output}; --resume leaves out what is done")
        for count, how in results.elsewhere(known, facts.environment) if running.resume else ():
            found = f"{counted(count, 'result')} of these cases in {running.output}"
            note(f"{found}: not counted, because their environment differs: {escaped(how)}")
        try:
            for step in run_plan(plan, facts, results, lines.begin):
                lines(step)
        except KeyboardInterrupt:
            lines.clear()
            done = lines.statuses.total()
            note(f"interrupted; {running.output} has the results so far ({done} of this run); continue with:")
            note(f"  {shlex.join([*line, *([] if running.resume else ['--resume'])])}")
            return 130
        had = results.has_figures(known)
    bench_masks.show_ranking(running.output, cases)
    if lines.statuses:
        note(f"results: {', '.join(f'{count} {state}' for state, count in sorted(lines.statuses.items()))}")
    else:
        note(f"nothing left to run: {running.output} has all results")
    note(f"next: molprof bench show {shlex.quote(str(running.output))}")
    if lines.statuses.keys() - {OK, UNSUPPORTED} and not lines.statuses[OK] and not had:
        raise RunError(
            f"none of the cases has figures: {lines.last_problem}", hint="the file has all messages and stacks"
        )
    return 0


_SDPA = """Measure the attention kernel alone: time by device events, TFLOP/s, GB/s, error.

\b
Examples:
  molprof bench sdpa -o sdpa.jsonl
  molprof bench sdpa --shape 4x16x16x2048x64,32x16x8x1024x128 --backend auto,flash,math -o sdpa.jsonl
"""


def _sdpa_cases(running: Running, given: dict[str, Any]) -> Callable[[bool], Sequence[Case]]:
    shapes = given.pop("attention_shapes")
    return lambda gpu: sdpa_cases(shapes or tuple(map(read_shape, SHAPES[gpu])), **given)


_GENERATION = """{line}

Lists take commas; 'all' stands for every value.

\b
Examples:
  molprof bench {name} --model qwen -o bench.jsonl
  molprof bench {name} --processor none,lp --batch-size 8,32 --repeats 6 -o bench.jsonl --resume
  molprof bench {name} --dry-run
"""


def _generation_cases(running: Running, given: dict[str, Any]) -> Callable[[bool], Sequence[Case]]:
    given["sampling"] = sampling_asked(click.get_current_context())
    prompt, answer, arguments = (given.pop(name) for name in ("prompt_format", "answer_format", "processor_args"))
    project = running.submission.project

    def of_project(case: GenerateCase) -> GenerateCase:
        """A case with what its model's name in molprof.toml stands for, as in a capture."""
        name = project.model(case.model).processor or LP_PROCESSOR if case.processor == LP_WORD else case.processor
        own = arguments if ":" in (name or "") else ()
        asked = project.asked(case.model, case.tokenizer, prompt, answer)
        return replace(case, processor=name, processor_args=own, **asked)

    cases = tuple(dict.fromkeys(map(of_project, generation_cases(given))))
    check_arguments(arguments, any(case.processor_args for case in cases))
    for name in dict.fromkeys(case.processor for case in cases):
        if name is not None and name not in PROCESSORS:
            check_processor(name, arguments)
    for case in cases:
        check_folder("model", case.model)
        check_folder("tokenizer", case.tokenizer)
        check_preset(case)
    return lambda gpu: cases


@click.command("show", cls=PlotCommand, kinds={name: kind.help for name, kind in BENCH_PLOTS.items()})
@click.argument("file", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--plot", "kind", type=click.Choice(list(BENCH_PLOTS)), help="Write this plot to -o OUT instead of tables."
)
@result_options()
def _show(file: Path, kind: str | None, result: Result) -> None:
    """Show the results in FILE as tables, or as a plot.

    \b
    Examples:
      molprof bench show bench.jsonl
      molprof bench show bench.jsonl -o bench.csv
      molprof bench show bench.jsonl --plot batch -o batch.svg
    """
    context = click.get_current_context()
    if kind is not None and context.get_parameter_source("style") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--format is for tables; the ending of OUT selects the format of a plot")
    if kind is not None and plot_format(result.output) not in PLOT_FORMATS:
        raise click.UsageError(f"--plot {kind} requires -o OUT that ends in .png, .svg or .pdf")
    result.check([file])
    from molprof.common.bench_records import read_results

    results = read_results(file)
    if kind is not None:
        write(plot_file(kind, results, plot_format(result.output)), result.output)
        return
    from molprof.analysis.documents.benchmark import bench_document

    note(*results.notes)
    result.deliver(bench_document(results, f"Benchmark results: {file.name}"))


command.add_command(_benchmark("sdpa", _SDPA, _SDPA_OPTIONS, _sdpa_cases))
for _name, _one in BENCHMARKS.items():
    _text = _GENERATION.format(name=_name, line=_one.line)
    command.add_command(_benchmark(_name, _text, _generation_options(_one), _generation_cases))
_MASK_OPTIONS = (
    _listed("--engine", "engines", bench_masks.ENGINE_NAMES, _ALL, "Packages that make masks."),
    click.option("--tokenizer", "--model", "tokenizers", type=_values(), metavar="A,B,...",
                 help="Presets, folders or hub ids: take your model's, on which the order depends.  [default: llama]"),
    click.option("--batch", "batches", type=_values(read=int), metavar="N,...", default="1,8,32", show_default=True,
                 help="Measure batches of N rows too."),
    *bench_masks.OPTIONS,
)  # fmt: skip
_masks = _benchmark(bench_masks.NAME, bench_masks.TEXT, _MASK_OPTIONS, lambda _, given: bench_masks.mask_cases(given))
for _item in _masks.params:
    if isinstance(_item, click.Option) and _item.name in bench_masks.HELP:
        _item.help = bench_masks.HELP[_item.name]
command.add_command(_masks)
command.add_command(_show)
command.add_command(recommend.command)
