"""`molprof bench`: measure configurations, each case in a process of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from molprof.analysis.documents.plots import BENCH_PLOTS, plot_file
from molprof.commands.bench_run import Running, run, submitted
from molprof.commands.options import (
    PLOT_FORMATS,
    PlotCommand,
    Result,
    grouped,
    note,
    plot_format,
    result_options,
    with_options,
    write,
)
from molprof.commands.run_options import Pair, Seconds, check_arguments, sampling_asked, setting_option
from molprof.commands.submission import Submittable, submit_options
from molprof.common.setting import Setting, rows
from molprof.common.settings import AUTO, SETTINGS
from molprof.profiler.bench.cases import BACKENDS, MASKS, Case, GenerateCase
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
from molprof.profiler.models.architecture import check_folder, check_preset
from molprof.profiler.molecules.files import split_column
from molprof.profiler.processors import PROCESSORS, check_processor

_F = TypeVar("_F", bound=Callable[..., Any])
_ALL = "all"
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class _Values(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs only since 8.5
    """Values with commas between them; `all` stands for all `choices`."""

    def __init__(self, choices: Sequence[str] | None = None, read: Callable[[str], Any] = str) -> None:
        self._choices, self._read = choices, read
        self.name = "N,M,..." if read is int else "A,B,..."

    def convert(
        self, value: str | tuple[Any, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        items = [item.strip() for item in value.split(",") if item.strip()]
        if not items:
            self.fail("names no value", param, ctx)
        if self._choices is not None:
            items = list(self._choices) if items == [_ALL] else items
            for item in items:
                if item not in self._choices:
                    self.fail(f"{item!r} is not one of {', '.join(self._choices)}, {_ALL}", param, ctx)
        try:
            return tuple(dict.fromkeys(map(self._read, items)))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers", param, ctx)


class _Bytes(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, with K, M, G or T for powers of 1000."""

    name = "SIZE"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = value.strip().upper().removesuffix("B").removesuffix("I")
        unit = text[-1:] if text[-1:] in _SIZES else ""
        try:
            size = round(float(text.removesuffix(unit)) * _SIZES[unit])
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a size such as 12G", param, ctx)
        if size <= 0:
            self.fail(f"{value!r} is not above 0", param, ctx)
        return size


class _Molecules(click.Path):
    """FILE or FILE:COLUMN with molecules; the file, made absolute, exists."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, resolve_path=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path, column = split_column(str(value))
        found = os.fsdecode(super().convert(str(path), param, ctx))
        return found if column is None else f"{found}:{column}"


def _listed(option: str, name: str, choices: Sequence[str], default: str, text: str) -> Callable[[_F], _F]:
    return click.option(option, name, type=_Values(choices), default=default, show_default=True, help=text)


_AT_LEAST_1 = click.IntRange(1)
_SDPA_OPTIONS = (
    click.option("--shape", "shapes", type=_Values(read=read_shape), metavar="BxHxKxSxD,...",
                 help="Batch, heads, KV heads, sequence, head size, e.g. 4x16x16x2048x64.  [default: by device]"),
    _listed("--backend", "backends", BACKENDS, ",".join(BACKENDS), "Kernels; auto leaves the choice to torch."),
    _listed("--phase", "phases", PHASES, ",".join(PHASES), "prefill: as many queries as keys, decode: one query."),
    _listed("--mask", "masks", MASKS, "none,padding",
            "none (a prefill is causal then), causal, or padding: a tensor as of a padded batch."),
    setting_option(SETTINGS["dtype"]),
)  # fmt: skip
# Of every benchmark; the fields of `Running`.
_RUNNING_OPTIONS = (
    click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path),
                 help="Add results to FILE, one JSON line each (.jsonl)."),
    click.option("--resume", is_flag=True, help="Leave out cases that FILE has of this machine."),
    click.option("--retry", is_flag=True, help="With --resume: run cases again that were not ok."),
    click.option("--dry-run", "--list", "dry_run", is_flag=True, help="List the cases and run none."),
    click.option("--repeats", type=_AT_LEAST_1, default=3, show_default=True, metavar="N",
                 help="Processes per case, interleaved with those of the other cases."),
    click.option("--seed", default=0, show_default=True, help="Seed for the random order of cases."),
    click.option("--limit", type=Seconds(), default=600.0, show_default=True, metavar="SECONDS",
                 help="Kill a case that takes longer; it has timed out."),
    click.option("--memory-limit", type=_Bytes(), metavar="SIZE",
                 help="Kill a case that has more resident memory, such as 12G.  [default: 80 % of what is free]"),
    click.option("--no-bisect", "bisect", flag_value=False, default=True,
                 help="Do not search for the largest batch that fits if a case is out of memory."),
    setting_option(SETTINGS["device"]),
    click.option("--threads", type=_AT_LEAST_1, metavar="N", help="CPU threads for torch.  [default: one per core]"),
    click.option("--share", type=Pair("K/N", "1/4", least=1), help="Run every N-th case, from the K-th on."),
    submit_options,
    click.option("--tasks", type=_AT_LEAST_1, metavar="N",
                 help="With --submit: split the cases into N tasks of a job array.  [default: 1]"),
)  # fmt: skip


def _generation_options(benchmark: Benchmark) -> tuple[Callable[[_F], _F], ...]:
    """Return the options of a benchmark of whole generation: its grid, and what all its cases share."""
    values = values_of(benchmark)
    shared = (row for row in rows(GenerateCase).values() if row.bench)
    return *(_axis_option(row, values[name]) for name, row in AXES.items()), *map(_shared_option, shared)


def _axis_option(row: Setting, values: Sequence[object]) -> Callable[[_F], _F]:
    choices = ("off", "on") if row.type is bool else row.accepted
    texts = list(map(_value_text, values))
    default = _ALL if choices is not None and texts == list(choices) else ",".join(texts)
    kind = _Values(choices, int if row.type is int and not row.optional else functools.partial(_value, row))
    return click.option(row.flag, row.name, type=kind, help=row.axis or row.help, default=default, show_default=True)


def _shared_option(row: Setting) -> Callable[[_F], _F]:
    changes = {"smiles": _Molecules(), "prompts": click.Path(exists=True, dir_okay=False, resolve_path=True)}
    kind = changes.get(row.name, None if row.least is None else click.IntRange(row.least))
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


class _BenchGroup(click.Group):
    """Lists the benchmarks in the order of their declaration."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("bench", cls=_BenchGroup)
def command() -> None:
    """Measure configurations, each case in a process of its own, so that none can stop the others.

    A case ends as ok, failed, timed out (killed at --limit, with its stack), out of memory (with the largest batch
    that fits) or unsupported (with the reason). Each result is added to a file at once; Ctrl-C keeps the results so
    far.

    \b
    Examples:
      molprof bench sdpa -o sdpa.jsonl
      molprof bench attention --model qwen --batch-size 16 -o bench.jsonl
      molprof bench matrix --attention sdpa,eager --kv-cache all --batch-size 1,8,32 --dry-run
      molprof bench matrix --attention all --submit h100 --tasks 4 -o bench.jsonl
      molprof bench show bench.jsonl
      molprof recommend bench.jsonl
    """


def _benchmark(
    name: str,
    text: str,
    options: Sequence[Callable[..., Any]],
    cases_of: Callable[[Running, dict[str, Any]], Callable[[bool], Sequence[Case]]],
) -> click.Command:
    """The command of a benchmark; `cases_of` returns its cases, by whether they run on a GPU."""

    @grouped(Running, "running", *_RUNNING_OPTIONS)
    def invoke(running: Running, **given: Any) -> int:
        _check(running)
        cases = cases_of(running, given)
        if submitted(running, len(cases(True))):
            return 0
        from molprof.profiler.bench.schedule import read_machine

        facts = read_machine(running.device, running.threads, cases(True))
        return run(cases(facts.gpu), facts, running)

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
    from molprof.profiler.bench.results_file import check_results

    check_results(running.output)


_SDPA = """Measure the attention kernel alone: time by device events, TFLOP/s, GB/s, error.

\b
Examples:
  molprof bench sdpa -o sdpa.jsonl
  molprof bench sdpa --shape 4x16x16x2048x64,32x16x8x1024x128 --backend auto,flash,math -o sdpa.jsonl
"""


def _sdpa_cases(running: Running, given: dict[str, Any]) -> Callable[[bool], Sequence[Case]]:
    shapes = given.pop("shapes")
    given |= {"device": running.device, "threads": running.threads}
    return lambda gpu: sdpa_cases(shapes or tuple(map(read_shape, SHAPES[gpu])), **given)


_GENERATION = """{line}

Lists take commas; 'all' stands for every value.

\b
Examples:
  molprof bench {name} --model qwen -o bench.jsonl
  molprof bench {name} --processor none,auto --batch-size 8,32 --repeats 6 -o bench.jsonl --resume
  molprof bench {name} --dry-run
"""


def _generation_cases(running: Running, given: dict[str, Any]) -> Callable[[bool], Sequence[Case]]:
    given |= {"device": running.device, "threads": running.threads}
    given["sampling"] = sampling_asked(click.get_current_context())
    prompt, answer, arguments = (given.pop(name) for name in ("prompt_format", "answer_format", "processor_args"))
    project = running.submission.project

    def of_project(case: GenerateCase) -> GenerateCase:
        """A case with what its model's name in molprof.toml stands for, as in a capture."""
        name = project.model(case.model).processor or AUTO if case.processor == AUTO else case.processor
        own = arguments if ":" in (name or "") else ()
        asked = project.asked(case.model, case.tokenizer, prompt, answer)
        return replace(case, processor=name, processor_args=own, **asked)

    cases = tuple(dict.fromkeys(map(of_project, generation_cases(given))))
    check_arguments(arguments, any(case.processor_args for case in cases))
    for name in dict.fromkeys(case.processor for case in cases):
        if name is not None and name != AUTO and name not in PROCESSORS:
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
command.add_command(_show)
