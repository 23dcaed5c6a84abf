"""`molprof bench`: every configuration measured, each case in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from molprof.commands.bench_options import (
    Values,
    dtype_option,
    on_off,
    processor,
    running_options,
)
from molprof.commands.bench_run import Running, run, submitted
from molprof.commands.bench_show import show
from molprof.commands.submission import Submittable
from molprof.common.settings import ATTENTION, AUTO, COMPILE, KV_CACHES
from molprof.profiler.bench.cases import BACKENDS, MASKS, GenerateCase, SdpaCase
from molprof.profiler.bench.grids import (
    BENCHMARKS,
    DIMENSIONS,
    PHASES,
    PLAIN,
    SHAPES,
    Benchmark,
    generation_cases,
    read_shape,
    sdpa_cases,
)
from molprof.profiler.models.names import check_folder
from molprof.profiler.project import Project

_NUMBERS = Values(read=int, name="whole numbers")


class _BenchGroup(click.Group):
    """Lists the benchmarks in the order in which they were made."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("bench", cls=_BenchGroup)
def command() -> None:
    """Measures configurations, each case in a process of its own, so that none can hang or fell the others.

    A case ends as ok, failed, hung (killed at --limit, with the stack it hung in), out of memory (with the largest
    batch that fits) or unsupported (with the reason). Results are added to a file as they come; Ctrl-C keeps them.

    \b
    Examples:
      molprof bench sdpa -o sdpa.jsonl
      molprof bench attention --model qwen --batch-size 16 -o bench.jsonl
      molprof bench matrix --attention sdpa,eager --kv-cache all --batch-size 1,8,32 --dry-run
      molprof bench matrix --attention all --submit h100 --tasks 4 -o bench.jsonl
      molprof bench show bench.jsonl
      molprof recommend bench.jsonl
    """


def _check(running: Running) -> None:
    """Refuses before any work what cannot be."""
    if running.retry and not running.resume:
        raise click.UsageError("--retry says what --resume runs again; give both")
    if running.share is not None and running.submission.cluster is not None:
        raise click.UsageError("--share is for a part that runs here; on a cluster: --tasks N")
    if running.dry_run:
        return
    if running.output is None:
        raise click.UsageError("Missing option '-o'; --dry-run shows the cases without it.")
    from molprof.profiler.bench.records import check_results

    check_results(running.output)


@command.command("sdpa", cls=Submittable)
@click.option(
    "--shape",
    "shapes",
    type=Values(read=read_shape, name="BxHxKxSxD"),
    metavar="BxHxKxSxD,...",
    help="Batch, heads, KV heads, sequence, head size, e.g. 4x16x16x2048x64.  [default: by device]",
)
@click.option(
    "--backend",
    "backends",
    type=Values(BACKENDS),
    default=",".join(BACKENDS),
    show_default=True,
    metavar="A,B,...",
    help="Kernels; auto leaves the choice to torch.",
)
@click.option(
    "--phase",
    "phases",
    type=Values(PHASES),
    default=",".join(PHASES),
    show_default=True,
    metavar="A,B",
    help="As many queries as keys, or one.",
)
@click.option(
    "--mask",
    "masks",
    type=Values(MASKS),
    default="none,padding",
    show_default=True,
    metavar="A,B",
    help="none (a prefill is causal then), or a tensor as a padded batch brings one.",
)
@dtype_option
@running_options
def sdpa(
    shapes: tuple[Any, ...] | None,
    backends: tuple[str, ...],
    phases: tuple[str, ...],
    masks: tuple[str, ...],
    dtype: str,
    **options: Any,
) -> int:
    """The attention kernel alone: time by device events, TFLOP/s, GB/s, error.

    \b
    Examples:
      molprof bench sdpa -o sdpa.jsonl
      molprof bench sdpa --shape 4x16x16x2048x64,32x16x8x1024x128 --backend auto,flash,math -o sdpa.jsonl
    """  # fmt: skip
    running = Running(**options)
    _check(running)

    def cases(gpu: bool) -> tuple[SdpaCase, ...]:
        chosen = shapes or tuple(map(read_shape, SHAPES[gpu]))
        return sdpa_cases(chosen, backends, phases, masks, (dtype,), running.device, running.threads)

    if submitted(running, len(cases(gpu=True))):
        return 0
    from molprof.profiler.bench.schedule import read_machine

    facts = read_machine(running.device, running.threads)
    return run(cases(facts.gpu), facts, running)


def _generation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.option("--model", "models", type=Values(), metavar="A,B,...",
                         help="Presets, folders, hub ids, or names of molprof.toml."),
            click.option("--tokenizer", metavar="NAME", help="Of all of them.  [default: the model's own]"),
            click.option("--processor", "processors", type=Values(read=processor), metavar="A,B,...",
                         help="Logits processors; none: unconstrained, auto: as --lp."),
            click.option("--batch-size", "batch_sizes", type=_NUMBERS, metavar="N,M,...",
                         help="Molecules generated together."),
            click.option("--attention", "attentions", type=Values(ATTENTION), metavar="A,B,...",
                         help=f"{', '.join(ATTENTION)}."),
            click.option("--kv-cache", "kv_caches", type=Values(KV_CACHES), metavar="A,B,...",
                         help=f"{', '.join(KV_CACHES)}."),
            click.option("--compile", "compiles", type=Values(COMPILE), metavar="A,B,...",
                         help=f"{', '.join(COMPILE)}; with caches of fixed shape, the others are never compiled."),
            click.option("--tf32", "tf32s", type=Values(("off", "on"), on_off), metavar="off,on"),
            click.option("--cudnn-benchmark", "cudnn_benchmarks", type=Values(("off", "on"), on_off), metavar="off,on"),
            click.option("--pad-multiple", "padding_multiples", type=_NUMBERS,
                         metavar="N,M,...", help="Prompts are padded to a multiple of so many tokens."),
            click.option("-n", "count", type=click.IntRange(1), metavar="N",
                         help="Molecules at least, in full batches.  [default: the largest batch]"),
            click.option("--smiles", type=click.Path(path_type=Path), metavar="FILE", help="One SMILES per line."),
            click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE",
                         help="One plain-text prompt per line: no molecules."),
            click.option("--max-new-tokens", type=click.IntRange(1), metavar="N", help="Bound per sequence."),
            click.option("--warmup", type=click.IntRange(1), default=1, show_default=True, metavar="N",
                         help="Passes of a process before the timed ones."),
            click.option("--passes", type=click.IntRange(1), default=1, show_default=True, metavar="N",
                         help="Timed passes of a process."),
            click.option("--trust-remote-code", is_flag=True, help="Let a model from the hub bring code of its own."),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def _generation(name: str, benchmark: Benchmark) -> click.Command:
    """The command of a benchmark of whole generation: all have the same options, each its own grid."""

    def invoke(
        tokenizer: str | None,
        count: int | None,
        smiles: Path | None,
        prompts: Path | None,
        dtype: str,
        max_new_tokens: int | None,
        warmup: int,
        passes: int,
        trust_remote_code: bool,
        **options: Any,
    ) -> int:
        grids = {dimension: options.pop(dimension) for dimension in DIMENSIONS}
        running = Running(**options)
        _check(running)
        if prompts is not None and smiles is not None:
            raise click.UsageError("molecules and plain-text prompts exclude each other; leave one of them out")
        values = {
            dimension: given or benchmark.defaults.get(dimension) or PLAIN[dimension]
            for dimension, given in grids.items()
        }
        common = {
            "tokenizer": tokenizer, "count": count, "smiles": _absolute(smiles), "prompts": _absolute(prompts),
            "dtype": dtype, "max_new_tokens": max_new_tokens, "warmup": warmup, "passes": passes,
            "trust_remote_code": trust_remote_code, "device": running.device, "threads": running.threads,
        }  # fmt: skip
        cases = resolved(generation_cases(values, common), running.submission.project)
        _check_processors(cases)
        for case in cases:
            check_folder("model", case.model)
            check_folder("tokenizer", case.tokenizer)
        if submitted(running, len(cases)):
            return 0
        from molprof.profiler.bench.schedule import read_machine

        return run(cases, read_machine(running.device, running.threads, cases), running)

    invoke.__doc__ = f"{benchmark.line}\n\n{_compared(name, benchmark)}"
    made = _generation_options(dtype_option(running_options(invoke)))
    return click.command(name, cls=Submittable)(made)


def resolved(cases: Sequence[GenerateCase], project: Project) -> tuple[GenerateCase, ...]:
    """The cases with what a model's short name in molprof.toml stands for, as in a capture."""
    found = []
    for case in cases:
        alias = project.model(case.model)
        name = alias.processor or case.processor if case.processor == AUTO else case.processor
        tokenizer = project.tokenizer(case.tokenizer, alias)
        found.append(replace(case, model=alias.path, tokenizer=tokenizer, processor=name))
    return tuple(dict.fromkeys(found))


def _value(value: object) -> str:
    """As it is given on the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _compared(name: str, benchmark: Benchmark) -> str:
    """What the grid varies and what else it takes, for the help."""
    varied: list[str] = []
    fixed: list[str] = []
    for dimension, setting in DIMENSIONS.items():
        values = benchmark.defaults.get(dimension) or PLAIN[dimension]
        shown = ", ".join(map(_value, values))
        (varied if len(values) > 1 else fixed).append(f"{setting.replace('_', ' ')}: {shown}")
    return (
        f"Compares {'; '.join(varied)}. All else as {'; '.join(fixed)}. Each option replaces a list by another, with "
        "commas; 'all' stands for every value."
        f"\n\n\b\nExamples:\n  molprof bench {name} --model qwen -o bench.jsonl\n"
        f"  molprof bench {name} --processor none,auto --batch-size 8,32 --repeats 6 -o bench.jsonl --resume\n"
        f"  molprof bench {name} --dry-run"
    )


def _check_processors(cases: Sequence[GenerateCase]) -> None:
    """A mistyped name is found before anything runs."""
    from molprof.profiler.processors import PROCESSORS, find_factory

    for name in dict.fromkeys(case.processor for case in cases):
        if name is not None and name != AUTO and name not in PROCESSORS:
            find_factory(name)


def _absolute(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise click.UsageError(f"no file {path}")
    return str(path.resolve())


for _name, _benchmark in BENCHMARKS.items():
    command.add_command(_generation(_name, _benchmark))
command.add_command(show)
