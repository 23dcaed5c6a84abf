"""`molprof bench`: measure configurations, each case in a process of its own."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from molprof.commands import bench_masks, results
from molprof.commands.cases import Cases, run_here, submit_shares, told
from molprof.commands.command import CommandGroup
from molprof.commands.options import (
    Read,
    ResultOptions,
    declared,
    grouped,
    note,
    number_option,
    path_option,
    with_options,
)
from molprof.commands.run_options import Seconds, setting_option
from molprof.commands.submission import Submittable, own_arguments
from molprof.common.errors import UsageError
from molprof.common.settings import SETTINGS
from molprof.common.text import escaped
from molprof.common.values import counted
from molprof.profiler.bench.cases import BACKENDS, MASKS, Case, MasksCase, case_id, undivided
from molprof.profiler.bench.kernels import PHASES, SHAPES, read_shape, sdpa_cases
from molprof.profiler.jobs.grid import packaged

if TYPE_CHECKING:
    from molprof.profiler.bench.facts import CaseFacts

_F = TypeVar("_F", bound=Callable[..., Any])
_ALL = "all"
_REPEATS = 3
# Benchmarks of whole generation, which are sweeps.
_MOVED = {name: f"sweep {name}" for name in packaged()} | {"recommend": "sweep recommend"}


def _values(choices: Sequence[str] | None = None, read: Callable[[str], Any] = str) -> Read:
    """Return a type for values with commas between them; `all` stands for all `choices`."""

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
class CaseOptions(Cases):
    """Options of a benchmark on how its cases run."""

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
    device: str = declared(setting_option(SETTINGS["device"]))
    threads: int | None = declared(number_option("--threads", help="CPU threads for torch.  [default: one per core]"))
    # fmt: on


@click.group("bench", cls=CommandGroup, moved=_MOVED)
def command() -> None:
    """Measure attention kernels, and masks of constraints, each case in a process of its own.

    A case ends as ok, failed, timed out (killed at --limit, with its stack), out of memory (with the largest batch
    that fits), not measured (other programs took the memory) or unsupported (with the reason). Each result is added to
    a file at once; Ctrl-C keeps the results so far. Whole generation is measured by molprof sweep.

    \b
    Examples:
      molprof bench sdpa -o sdpa.jsonl
      molprof bench masks -o masks.jsonl
      molprof bench sdpa --submit h100 --tasks 4 -o sdpa.jsonl
      molprof bench show sdpa.jsonl
    """


def _benchmark(
    name: str,
    text: str,
    options: Sequence[Callable[..., Any]],
    cases_of: Callable[[CaseOptions, dict[str, Any]], Callable[[bool], Sequence[Case]]],
) -> click.Command:
    """Return the command of a benchmark; `cases_of` returns its cases, given True on a GPU."""

    @grouped(CaseOptions, "running")
    def invoke(running: CaseOptions, **arguments: Any) -> int:
        _check(running)
        cases = cases_of(running, {**arguments, "device": running.device, "threads": running.threads})
        if _submitted(running, len(undivided(cases(True)))):
            return 0
        from molprof.profiler.bench.facts import read_machine

        facts = read_machine(running.device, running.threads, cases(True))
        runnable = cases(facts.gpu)
        if running.repeats is None:  # of one constraint the answer is wanted at once
            is_one = all(isinstance(case, MasksCase) and case.is_one for case in runnable)
            running = replace(running, repeats=1 if is_one else _REPEATS)
        return run(runnable, facts, running)

    click_command = click.command(name, cls=Submittable, help=text, short_help=text.partition("\n")[0])
    return click_command(with_options(invoke, *options))


def _check(running: CaseOptions) -> None:
    if running.retry and not running.resume:
        raise click.UsageError("--retry requires --resume")
    running.check()
    if running.dry_run:
        return
    if running.output is None:
        raise click.UsageError("Missing option '-o'; --dry-run shows the cases without it.")
    from molprof.profiler.jobs.results_file import check_results

    check_results(running.output)


def _submitted(running: CaseOptions, cases: int) -> bool:
    """Submit the benchmark if requested, and return True if it was."""
    if running.submission.cluster is None or running.dry_run:
        return False
    assert running.output is not None
    if (running.tasks or 1) > cases:
        raise UsageError(
            f"--tasks {running.tasks} for {counted(cases, 'case')}: some would have none",
            f"use at most --tasks {cases}",
        )
    context = click.get_current_context()
    arguments = (context.params[item.name] for item in context.command.params if isinstance(item, click.Argument))
    words = ["bench", str(context.info_name), *filter(None, arguments)]
    words += own_arguments(context, "tasks", "output", "resume")
    submit_shares(running, "bench", words, running.output.absolute(), running.resume)
    if not running.submission.detach:
        note(f"next: molprof bench show {shlex.quote(str(running.output))}")
    return True


def run(cases: Sequence[Case], facts: CaseFacts, running: CaseOptions) -> int:
    """Run the cases, or list them; return the exit code."""
    from molprof.profiler.bench.facts import cases_document

    assert running.repeats is not None
    if running.share is not None:
        number, of = running.share
        cases = [case for group in undivided(cases)[number - 1 :: of] for case in group]
    if running.dry_run:
        ResultOptions().deliver(cases_document(cases, facts, running.repeats))
        return 0
    from molprof.common.process.guarded import Limits
    from molprof.profiler.bench.schedule import SchedulePlan, default_memory
    from molprof.profiler.jobs.results_file import ResultsFile

    assert running.output is not None
    ids = set(map(case_id, cases))
    plan = SchedulePlan(
        tuple(cases), running.repeats, running.seed, Limits(running.limit, running.memory_limit or default_memory()),
        running.resume, running.retry, running.bisect, ("molprof", *sys.argv[1:]),
    )  # fmt: skip
    with contextlib.closing(ResultsFile(running.output)) as file:
        if file.before.results and not running.resume:
            before = counted(len(file.before.results), "result")
            note(f"adding to {before} in {running.output}; --resume leaves out what is done")
        for count, how in file.elsewhere(ids, facts.environment) if running.resume else ():
            results_text = f"{counted(count, 'result')} of these cases in {running.output}"
            note(f"{results_text}: not counted, because their environment differs: {escaped(how)}")
        had_figures = file.has_figures(ids)
    if (lines := run_here(plan, facts, running.output)) is None:
        return 130
    bench_masks.show_ranking(running.output, cases)
    told(lines, running.output, ("molprof", "bench", "show", str(running.output)), had_figures)
    return 0


_SDPA = """Measure the attention kernel alone: time by device events, TFLOP/s, GB/s, error.

\b
Examples:
  molprof bench sdpa -o sdpa.jsonl
  molprof bench sdpa --shape 4x16x16x2048x64,32x16x8x1024x128 --backend auto,flash,math -o sdpa.jsonl
"""


def _sdpa_cases(running: CaseOptions, options: dict[str, Any]) -> Callable[[bool], Sequence[Case]]:
    shapes = options.pop("attention_shapes")
    return lambda gpu: sdpa_cases(shapes or tuple(map(read_shape, SHAPES[gpu])), **options)


command.add_command(_benchmark("sdpa", _SDPA, _SDPA_OPTIONS, _sdpa_cases))
_MASK_OPTIONS = (
    _listed("--engine", "engines", bench_masks.ENGINE_NAMES, _ALL, "Packages that make masks."),
    click.option("--tokenizer", "--model", "tokenizers", type=_values(), metavar="A,B,...",
                 help="Presets, folders or hub ids: take your model's, on which the order depends.  [default: llama]"),
    click.option("--batch", "batches", type=_values(read=int), metavar="N,...", default="1,8,32", show_default=True,
                 help="Measure batches of N rows too."),
    *bench_masks.OPTIONS,
)  # fmt: skip
_masks = _benchmark(bench_masks.NAME, bench_masks.TEXT, _MASK_OPTIONS, lambda _, values: bench_masks.mask_cases(values))
for _item in _masks.params:
    if isinstance(_item, click.Option) and _item.name in bench_masks.HELP:
        _item.help = bench_masks.HELP[_item.name]
command.add_command(_masks)
command.add_command(results.show)
