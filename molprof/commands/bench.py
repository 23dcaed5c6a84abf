"""`molprof bench`: measure configurations, each case in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from molprof.commands.bench_options import RUNNING_OPTIONS, SDPA_OPTIONS, generation_options
from molprof.commands.bench_run import Running, run, submitted
from molprof.commands.bench_show import show
from molprof.commands.options import grouped, with_options
from molprof.commands.run_options import check_arguments, sampling_asked
from molprof.commands.submission import Submittable
from molprof.common.settings import AUTO
from molprof.profiler.bench.cases import Case, GenerateCase
from molprof.profiler.bench.grids import BENCHMARKS, SHAPES, generation_cases, read_shape, sdpa_cases
from molprof.profiler.models.architecture import check_folder, check_preset
from molprof.profiler.processors import PROCESSORS, check_processor
from molprof.profiler.project import Project


class _BenchGroup(click.Group):
    """Lists the benchmarks in the order of their declaration."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [(name, (one.help or "").partition("\n")[0]) for name, one in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(lines)


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

    @grouped(Running, "running", *RUNNING_OPTIONS)
    def invoke(running: Running, **given: Any) -> int:
        _check(running)
        cases = cases_of(running, given)
        if submitted(running, len(cases(True))):
            return 0
        from molprof.profiler.bench.schedule import read_machine

        facts = read_machine(running.device, running.threads, cases(True))
        return run(cases(facts.gpu), facts, running)

    return click.command(name, cls=Submittable, help=text)(with_options(invoke, *options))


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
    cases = resolved(generation_cases(given), running.submission.project, prompt, answer)
    cases = tuple(replace(case, processor_args=arguments) if ":" in (case.processor or "") else case for case in cases)
    check_arguments(arguments, any(case.processor_args for case in cases))
    for name in dict.fromkeys(case.processor for case in cases):
        if name is not None and name != AUTO and name not in PROCESSORS:
            check_processor(name, arguments)
    for case in cases:
        check_folder("model", case.model)
        check_folder("tokenizer", case.tokenizer)
        check_preset(case)
    return lambda gpu: cases


def resolved(
    cases: Sequence[GenerateCase], project: Project, prompt: str | None = None, answer: str | None = None
) -> tuple[GenerateCase, ...]:
    """Return the cases with what models' names in molprof.toml stand for, as in a capture."""
    found = []
    for case in cases:
        alias = project.model(case.model)
        name = alias.processor or case.processor if case.processor == AUTO else case.processor
        tokenizer = project.tokenizer(case.tokenizer, alias)
        own = replace(case, model=alias.path, tokenizer=tokenizer, processor=name)
        form = alias.form
        found.append(replace(own, prompt_format=prompt or form.prompt, answer_format=answer or form.answer))
    return tuple(dict.fromkeys(found))


command.add_command(_benchmark("sdpa", _SDPA, SDPA_OPTIONS, _sdpa_cases))
for _name, _one in BENCHMARKS.items():
    _text = _GENERATION.format(name=_name, line=_one.line)
    command.add_command(_benchmark(_name, _text, generation_options(_one), _generation_cases))
command.add_command(show)
