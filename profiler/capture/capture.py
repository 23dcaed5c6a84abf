"""A whole capture: one run, or several with timed passes interleaved round by round."""

from __future__ import annotations

import random
import secrets
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from msgspec.structs import replace
from transformers.utils.import_utils import is_optimum_quanto_available

from molprof.common.answer_counts import answer_counts
from molprof.common.engine_settings import TABLE, VLLM
from molprof.common.errors import MolprofError, UsageError
from molprof.common.files import check_output
from molprof.common.manifest import Machine, Session
from molprof.common.measured import MeasuredRun
from molprof.common.memory import default_threads, processors
from molprof.common.settings import NO_PROCESSOR, SETTINGS, CaptureSettings
from molprof.common.text import shortened
from molprof.profiler.capture.account import sequence_runs
from molprof.profiler.capture.answers import checks_of, not_judged
from molprof.profiler.capture.passes import CaptureProgress, Report
from molprof.profiler.capture.run import CapturedRun, CaptureResult, captures_graphs, graphs_path
from molprof.profiler.constraints import PROCESSORS, check_processor, check_table, whole_of, without_model
from molprof.profiler.engines import check_engine, loader
from molprof.profiler.engines.runner import check_fit
from molprof.profiler.machine import Watch
from molprof.profiler.models.architecture import ARCHITECTURES, check_preset
from molprof.profiler.models.device import capability, on_gpu, resolve_device, set_arithmetic
from molprof.profiler.models.hub import check_exists
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.bodies import constraints_of
from molprof.profiler.molecules.prompts import Prompts, read_inputs
from molprof.profiler.recording.tracefile import OutputFile, incomplete_path, is_incomplete, trace_stem

Asked = tuple[CaptureSettings, OutputFile]

# Of the reason why a processor is left out.
_MOST_TEXT = 200
_FORMAT = ("prompt_format", "answer_format")
# The settings that make a loaded model, and those that make the prompts.
_MODEL = (
    *("model", "size", "weights", "tokenizer", "dtype", "device", "attention", "trust_remote_code", *_FORMAT),
    *("engine", "batch_size", "compile", "speculative"),  # of vLLM's engine
)
# What a run without a processor cannot have.
_OF_PROCESSOR = ("processor", "processor_args", "placeholder", "disagreement", "grammar_file")
_INPUTS = ("smiles", "prompts", "requests", "count", "strict", "generations", *_FORMAT)


def capture(settings: CaptureSettings, output: OutputFile, report: Report = lambda progress: None) -> CaptureResult:
    """Capture one run and write its trace to `output`; an error leaves no file there."""
    (result,) = capture_together([(settings, output)], report)
    return result


def capture_together(
    captures: Sequence[Asked], report: Report = lambda progress: None, *, able_only: bool = False
) -> Iterator[CaptureResult]:
    """Capture several runs, each with its own trace, and yield each when its trace is written.

    Each model is loaded once. A run is named by its file. If one fails, the others go on, and the first failure is
    raised at the end.

    Args:
        able_only: a processor that does not take the constraint or the settings is reported (`refused`), and the others
            go on; a table that would fall back to another processor counts as one. Without it that ends the capture.
    """
    refused: dict[str, MolprofError] = {}

    def is_able(settings: CaptureSettings, step: Callable[[], object]) -> bool:
        try:
            step()
        except MolprofError as problem:
            if not able_only:
                raise
            name = settings.processor or NO_PROCESSOR
            refused[name] = problem
            why = shortened(" ".join(str(problem).split()), _MOST_TEXT)
            report(CaptureProgress("refused", notes=(f"{name} is left out: {why}",)))
            return False
        return True

    for settings, output in captures:
        _check(settings, output)
    inputs = {_key(settings, _INPUTS): settings for settings, _ in captures}
    prompts = {key: read_inputs(settings) for key, settings in inputs.items()}
    captures = [
        (settings, output)
        for settings, output in captures
        if is_able(settings, partial(_check_constraints, settings, prompts[_key(settings, _INPUTS)]))
    ]
    for settings, _ in captures:  # the hub is asked last
        for what, name in (("model", settings.model), ("tokenizer", settings.tokenizer), ("model", settings.assistant)):
            if name is not None:
                check_exists(what, name)
    loaders = {settings.engine_name: loader(settings.engine_name) for settings, _ in captures}
    if (settings := captures[0][0]).threads is not None:
        torch.set_num_threads(settings.threads)
    elif not on_gpu(resolve_device(settings.device)):
        torch.set_num_threads(default_threads(torch.get_num_threads()))
    set_arithmetic(captures[0][0])
    notes = [line for item in prompts.values() for line in item.notes()]
    wholes = {whole_of(settings) for settings, _ in captures}
    wholes |= {prompt.constraint for item in prompts.values() for prompt in item.prompts}
    if unread := not_judged(wholes):
        if all(settings.processor is None for settings, _ in captures):  # no engine reads it either
            raise UsageError(unread[0], hint="a regular expression of Python, or --processor NAME, which may take it")
        notes += unread
    if any(_unasked(settings) for settings, _ in captures):
        notes.append("neither --prompts nor --smiles is given: the prompts are the built-in molecules")
    report(CaptureProgress("load", notes=tuple(notes)))
    models: dict[tuple[object, ...], LoadedModel] = {}
    loads_ns: dict[tuple[object, ...], int] = {}
    runs: list[CapturedRun] = []
    for settings, output in captures:
        key = _key(settings, _MODEL)
        if key not in models:
            if models:
                report(CaptureProgress("load"))
            load = loaders[settings.engine_name]
            began = time.perf_counter_ns()
            models[key] = load(settings, lambda layer, layers: report(CaptureProgress("weights", layer, layers)))
            loads_ns[key] = time.perf_counter_ns() - began
        name = trace_stem(output.path.name) if len(captures) > 1 else ""

        if settings.processor is not None:
            report(CaptureProgress("make", run=name))

        def make() -> None:
            whole = whole_of(settings)  # noqa: B023
            if able_only and settings.processor == TABLE and whole is not None:  # noqa: B023
                check_table(models[key].target, whole)  # noqa: B023
            run_prompts = prompts[_key(settings, _INPUTS)]  # noqa: B023
            runs.append(CapturedRun(settings, output, models[key], run_prompts, report, name))  # noqa: B023
            runs[-1].load_ns = loads_ns[key]  # noqa: B023

        is_able(settings, make)
    if refused and all(run.settings.processor is None for run in runs):
        raise UsageError("no installed engine takes the constraint", hint="the lines above say why, of each engine")
    yield from interleaved(runs)


def _unasked(settings: CaptureSettings) -> bool:
    """Return True if a user's own model or processor would get the built-in molecules as prompts by default."""
    is_own = settings.model not in ARCHITECTURES or ":" in (settings.processor or "")
    return is_own and settings.prompts is None and settings.requests is None and settings.smiles is None


def _key(settings: CaptureSettings, names: Sequence[str]) -> tuple[object, ...]:
    return tuple(getattr(settings, name) for name in names)


def interleaved(runs: Sequence[CapturedRun], seed: int | None = None) -> Iterator[CaptureResult]:
    """Make all passes of the runs, which have different names, and yield each run when its trace is written.

    In each round every run has one timed pass, in random order: what changes the machine's speed meets all runs alike.
    The recorded passes come last, since a profiler may leave its process slower.
    """
    problems: dict[str, MolprofError] = {}

    def went_well(run: CapturedRun, step: Callable[[], object]) -> bool:
        if run.name not in problems:
            try:
                step()
            except MolprofError as problem:
                problems[run.name] = problem
                if len(runs) > 1:
                    run.passes.tell("failed", f"failed: {problem}")
        return run.name not in problems

    watch = Watch(runs[0].passes.runner.loaded.target.device)
    for run in runs:
        went_well(run, run.warm_up)
    before = watch.end()
    if busy := Machine(processors(), None, [before]).doubts():
        runs[0].passes.report(CaptureProgress("machine", notes=(f"times will be in doubt: {'; '.join(busy)}",)))
    session = Session(uuid.uuid4().hex, secrets.randbits(32) if seed is None else seed)
    order = random.Random(session.seed)
    turns: dict[str, dict[int, int]] = {run.name: {} for run in runs}  # by round
    for number in range(max(run.settings.repeats for run in runs)):
        turn = list(runs)
        order.shuffle(turn)
        for index, run in enumerate(turn):
            if number < run.settings.repeats and went_well(run, partial(run.timed_pass, watch)):
                turns[run.name][number] = index
    if len(runs) == 1 and not runs[0].settings.timed_only:  # timestamps cost runs that are compared alike
        went_well(runs[0], runs[0].unmarked_pass)
    for run in runs:
        if run.name in problems:
            problems[run.name] = run.failed(problems[run.name])  # now, since it records too
    names = [run.name for run in runs if run.name not in problems]
    measured = _measured([run for run in runs if run.name in names], turns) if len(runs) > 1 else {}
    for run in runs:
        others, mine = [name for name in names if name != run.name], turns[run.name]
        run_session = replace(session, run=run.name, others=others, rounds=list(mine), places=list(mine.values()),
                              measured=measured.get(run.name, []))  # fmt: skip
        results: list[CaptureResult] = []
        if went_well(run, lambda: results.append(run.record(run_session if len(runs) > 1 else None, before))):  # noqa: B023
            yield results[0]
    for run in runs:
        if run.name not in problems:
            run.record_graphs()
    if problems:
        raise _first(problems) if len(runs) > 1 else problems[runs[0].name]


def _measured(runs: Sequence[CapturedRun], turns: Mapping[str, Mapping[int, int]]) -> dict[str, list[MeasuredRun]]:
    """Return, by the name of a run, the figures of the runs that differ from it in the processor alone."""
    alike = [name for name in SETTINGS if name not in _OF_PROCESSOR]
    groups: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for run in runs:
        groups.setdefault(_key(run.settings, alike), []).append(_measured_run(run, [*turns[run.name]]))
    return {run.name: groups[_key(run.settings, alike)] for run in runs}


def _measured_run(run: CapturedRun, rounds: Sequence[int]) -> MeasuredRun:
    """Return the figures of the timed passes, and the answers of the first; rounds: of each pass."""
    runner, repeats = run.passes.runner, run.repeats
    answers, _ = sequence_runs(runner, run.passes.plans, run.results[0])
    steps = sum(map(len, repeats[0].steps_ns))
    phases = [repeat.phases_ns.get("processor") for repeat in repeats]
    sums: Counter[str] = Counter()
    for repeat in repeats:
        sums.update(repeat.constraint_ns)
    return MeasuredRun(
        name=run.name,
        processor=getattr(runner.processor, "name", run.settings.processor),
        rounds=list(rounds),
        step_ns=[sum(map(sum, repeat.steps_ns)) / steps for repeat in repeats],
        phase_ns=None if None in phases else statistics.mean(filter(None, phases)) / steps,
        constraint_ns={name: ns / steps / len(repeats) for name, ns in sums.items()},
        once_ns=run.processor_once_ns,
        once_parts_ns=run.once_parts_ns,
        **answer_counts(answers),
        steps=steps,
    )


def _first(problems: dict[str, MolprofError]) -> MolprofError:
    """Return the first failure of several runs, as an error that names its run."""
    name, problem = next(iter(problems.items()))
    more = f" ({len(problems)} runs failed)" if len(problems) > 1 else ""
    failure = MolprofError(f"{name}: {problem}{more}", problem.hint)
    failure.exit_code = problem.exit_code
    return failure


def _check(settings: CaptureSettings, output: OutputFile) -> None:
    """Raise UsageError for settings with which a run cannot be made, as far as they show."""
    output.check()
    check_preset(settings)
    check_engine(settings.engine_name)
    checks_of(settings)
    if settings.processor is not None and settings.engine_name != VLLM:
        # finds a mistyped name before the model is loaded
        check_processor(settings.processor, settings.processor_args)
        if settings.processor not in PROCESSORS:
            left = incomplete_path(output.path)
            # What the last failure left may be replaced: fixing a processor takes many tries.
            check_output(left, output.force or is_incomplete(left))
    device = resolve_device(settings.device)
    if captures_graphs(settings, on_gpu(device)):
        check_output(graphs_path(output.path), output.force)
    if reason := settings.without_device(capability(device)):
        raise UsageError(reason, hint="leave the option out, or choose another --device")
    if settings.kv_cache == "quantized" and not is_optimum_quanto_available():
        raise UsageError(
            "kv-cache 'quantized' needs the package optimum-quanto, which is not installed",
            hint="pip install optimum-quanto",
        )


def _check_constraints(settings: CaptureSettings, prompts: Prompts) -> None:
    """Raise UsageError if a processor does not suit the prompts, as far as that is known without a model."""
    first = next(((item.line, item.constraint.kind) for item in prompts.prompts if item.constraint is not None), None)
    if settings.engine_name == VLLM:
        bodies = [prompt.body for prompt in prompts.prompts if prompt.body is not None]
        if (
            settings.processor is not None
            and first is None
            and whole_of(settings) is None
            and not any(map(constraints_of, bodies))
        ):
            hint = (
                "--schema, --regex, --choices or --grammar-file; or the same in JSON lines of --prompts, or --requests"
            )
            raise UsageError(f"nothing says what {settings.processor} is to constrain to", hint)
        return
    if first is not None and settings.processor is not None:
        text = f"line {first[0]} of {prompts.source} has {first[1]} of its own, which only vLLM enforces"
        raise UsageError(text, hint="--engine vllm, or one constraint for all")
    check_fit(settings, without_model(settings), prompts.prompts)
