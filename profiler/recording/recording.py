"""A recording of a user's program: its marks, and the trace and manifest that are written."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from msgspec import UNSET
from transformers import PreTrainedTokenizerFast

from molprof.common import live
from molprof.common.engine_settings import AUTO
from molprof.common.errors import RunError, UsageError
from molprof.common.manifest import INCOMPLETE_KEY, Machine, Manifest, ProcessorCalls, ProgramTotals, Resolved, Window
from molprof.common.memory import processors
from molprof.common.settings import SETTINGS, CaptureSettings
from molprof.common.values import counted
from molprof.profiler.machine import Watch
from molprof.profiler.models.device import resolve_device
from molprof.profiler.models.load import sizes
from molprof.profiler.models.target import token_bytes
from molprof.profiler.recording.arguments import constraints_of, without_processors
from molprof.profiler.recording.clock import Clock, StepPlan
from molprof.profiler.recording.loop import OwnLoop
from molprof.profiler.recording.manifest import manifest_of, write_run
from molprof.profiler.recording.marks import GenerateCall, config_value, marked
from molprof.profiler.recording.sequences import DecodedStep, Generated, WrittenBatch, batch_of, generated
from molprof.profiler.recording.timed import TimedRun
from molprof.profiler.recording.tracefile import ExportedFile, OutputFile, incomplete_path, read_exported, write_trace
from molprof.profiler.recording.window import export

_LOG = logging.getLogger("molprof")
# What may be recorded besides operators and GPU work.
WHAT = frozenset({"stacks", "modules", "shapes", "memory"})
_ALONE = "record it without that profiler"
_MARK = "put `with molprof.step():` around each step of a loop of your own"
_ALL = "without a window (molprof run --full) all is recorded"


class Recording:
    """A running or ended recording.

    Attributes:
        path: the trace that was written; None before the end, and where there is none.
        notes: remarks, one line each.
    """

    def __init__(
        self, output: OutputFile, tokenizer: Any, plan: StepPlan, functions: bool | None = None, **what: bool
    ) -> None:
        if others := ", ".join(sorted({*what} - WHAT)):
            raise UsageError(f"nothing called {others} can be recorded", hint=f"one of {', '.join(sorted(WHAT))}")
        self.path: Path | None = None
        self.notes: list[str] = []
        self.marks: Clock
        self._output, self._plan = output, plan
        # What is switched off of a program without its processors, in the order of the first call; None: nothing is.
        self.switched_off: dict[str, None] | None = None
        self._tokenizer = tokenizer if hasattr(tokenizer, "backend_tokenizer") else None
        self._recorded = {name: what.get(name, False) for name in WHAT}
        self._what: dict[str, Any] = {"stacks": what.get("stacks", False) or what.get("modules", False)}
        self._what |= {name: what.get(name, False) for name in ("shapes", "memory")}
        self._functions = functions
        self._what["functions"] = not self._recorded["stacks"] if functions is None else functions
        self._batches: list[WrittenBatch] = []
        self._first: GenerateCall | None = None
        self._model: Any = None
        self._missed = 0
        self._failed: set[int] = set()  # batches that ended with an exception
        self._found: Generated | None = None
        self._began_ns = self._ended_ns = 0
        self._machine: Machine | None = None  # while the program ran
        self._fault: str | None = None  # of molprof, which makes the manifest impossible

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Mark calls and loops inside the block."""
        device = resolve_device(AUTO)
        self.marks = marks = Clock(self._plan, device, others=self._plan.full, **self._what)
        watch = None if marks.full else Watch(device)
        self._began_ns = marks.clock()
        self._loop = OwnLoop(marks, self._heard_loop, lambda: len(self._batches))
        try:
            with (
                marked(self.marks, self._number, self._heard, self._miss),
                live.listening(self._loop),
                self._without_processors(),
            ):
                yield
        finally:
            self._loop.close()
            try:
                self._ended_ns = marks.clock()
                if watch is not None:
                    self._machine = Machine(processors(), None, [watch.end()])
                marks.finish()
            except Exception as problem:
                self._fault = text_of(problem)

    @contextmanager
    def _without_processors(self) -> Iterator[None]:
        """Switch off the program's processors in the block, if requested."""
        if (off := self.switched_off) is None:
            yield
            return
        live.switch_off(lambda name: off.setdefault(f"{name} (molprof.watch)"))
        try:
            with without_processors(off.setdefault):
                yield
        finally:
            live.switch_off(None)

    def timed(self, problem: str | None = None) -> TimedRun | None:
        """Return the figures of a run that records nothing; None if nothing was generated, or all is recorded."""
        repeat = None if self.marks.full else self.marks.repeat()
        if repeat is None or not self._batches:
            return None
        steps = [step for batch in self._batches for step in batch.steps]
        return TimedRun(
            repeat=repeat,
            spans=[] if self._machine is None else self._machine.passes,
            steps=[len(batch.steps) for batch in self._batches],
            tokens=sum(len(tokens) for step in steps for tokens in step.tokens.values()),
            switched_off=list(self.switched_off or ()),
            problem=problem,
        )

    def began(self, began_ns: int, own_ns: int) -> None:
        """Set when the program began, before the recording, and how long it waited for the recording to begin."""
        self._began_ns = began_ns
        self.marks.own_ns += own_ns

    @property
    def own_ns(self) -> int | None:
        """Time of molprof's own work while the program waited; None if everything was recorded."""
        return None if self.marks.full else self.marks.own_ns

    def nothing(self, problem: str | None = None) -> tuple[str, str] | None:
        """Return why nothing was recorded, and a hint; problem: the error that ended the program early."""
        marks = self.marks
        if marks.kept is not None:
            return None
        if marks.lost is not None:
            return marks.lost, _ALONE
        if problem is not None:
            return f"nothing was recorded before the program ended with {problem}", _ALL
        if marks.calls:
            steps = ", ".join(str(call.steps) for call in marks.calls[:8])
            return f"no step of the window was reached; the calls had {steps} steps", "choose another window or call"
        return "no call of transformers' generate returned, and molprof.step() was not called", f"{_MARK}; {_ALL}"

    def summary(self) -> list[str]:
        """Return a summary of the recorded and timed steps, in lines; empty without a batch."""
        if not self._batches or self._found is None:
            return []
        tokens = sum(len(run.token_ids) for run in self._found.sequences)
        return summary_lines([len(batch.steps) for batch in self._batches], tokens, self.marks, self._machine)

    def write(self, problem: str | None = None) -> None:
        """Write the trace; `problem`: the error that ended the program early."""
        kept = self.marks.kept
        if kept is None:
            why, hint = self.nothing(problem) or ("", None)
            raise RunError(f"no trace is written: {why}", hint)
        with self._output.raw() as raw:
            export(kept.profiler, raw)
            exported = read_exported(
                raw, self._output, functions=self._recorded["stacks"] or not self._recorded["modules"]
            )
            marked = {(batch, step) for batch, item in enumerate(self._batches) for step in range(len(item.steps))}
            unknown = {key for key in exported.steps if key not in marked or key[0] in self._failed}
            if problem is not None and unknown:  # of a call that did not return
                self._write_incomplete(exported, problem)
                return
            if not self._batches:
                self.notes.append(f"no steps are marked: {_MARK}")
                self.path = write_trace(exported, self._output, (), {})
                return
            try:
                if self._fault is not None:
                    raise RunError(self._fault)
                manifest = self._known(exported, kept.window)
            except Exception as fault:
                _LOG.warning(
                    "molprof could not tell what the program did, and writes what was recorded: %s", text_of(fault)
                )
                self._write_incomplete(exported, text_of(fault))
                return
            assert self._found is not None
            self.path = write_run(exported, self._output, manifest, self._found)

    def _known(self, exported: ExportedFile, window: Window | None) -> Manifest:
        """Return the manifest. window: the recorded steps; None: all."""
        if not self.marks.full and len(self.marks.calls) != len(self._batches):
            raise RunError("a call of generate is not known")
        number = self._plan.call
        if window is not None and number not in (None, window.batch):
            calls = f"of {counted(len(self._batches), 'call')}"
            self.notes.append(
                f"{calls}, number {number} has no step of the window: steps of call {window.batch} are recorded"
            )
        if self._failed:
            failed = f"{counted(len(self._failed), 'call')} of generate ended with an exception"
            self.notes.append(f"{failed}: the steps are recorded, the tokens are not known")
        if self._tokenizer is None:
            self.notes.append("no tokenizer of the model was found, so that texts are not recorded")
        run = self._found = self._generated()
        return self._manifest(run, exported, window or Window(True, 0, 0, len(run.rows_per_step[0]) - 1))

    def _write_incomplete(self, exported: ExportedFile, problem: str) -> None:
        output = OutputFile(incomplete_path(self._output.path), force=True)
        keys = {"problem": problem, "processor": None, "command": list(self._output.command)}
        self.path = write_trace(exported, output, (), {INCOMPLETE_KEY: keys})

    def _number(self) -> int:
        self._loop.close()  # a call of `generate` ends a loop
        return len(self._batches)

    def _miss(self) -> None:
        self._missed += 1

    def _heard(self, call: GenerateCall) -> None:
        if not call.steps or (call.failed and not self.marks.full):  # nothing was generated, or its times do not count
            return
        if call.failed:  # its steps are in the trace; what it wrote is not known
            self._failed.add(len(self._batches))
            self._batches.append(WrittenBatch([DecodedStep({}, max(call.rows, default=1))] * call.steps, []))
            return
        with self.marks.standing():
            self._batches.append(batch_of(call))
            if self._first is None:
                self._first = call
                call.last, call.sequences, call.done = None, None, []
            self._met(call.model, config_value(call, "tokenizer"))

    def _heard_loop(self, batch: WrittenBatch, model: Any) -> None:
        self._batches.append(batch)
        with self.marks.standing():
            self._met(model, None)

    def _met(self, model: Any, tokenizer: Any) -> None:
        """Keep the first model, and its tokenizer, which the program may drop before it ends.

        tokenizer: what `generate` was given, as for `stop_strings`; None: nothing.
        """
        if self._model is None and model is not None:
            self._model = model
            given = tokenizer if hasattr(tokenizer, "backend_tokenizer") else None
            self._tokenizer = self._tokenizer or given or _tokenizer_of(model)

    def _generated(self) -> Generated:
        steps: list[DecodedStep] = []
        prompts: dict[int, list[int]] = {}
        first = 0
        for number, batch in enumerate(self._batches):
            steps += batch.numbered(number, first)
            prompts |= dict(enumerate(batch.prompts, first))
            first += batch.rows
        ends = frozenset[int]().union(*(batch.ends for batch in self._batches))
        table = None if self._tokenizer is None else token_bytes(self._tokenizer)
        return generated(steps, prompts, table, ends)

    def _manifest(self, run: Generated, recorded: ExportedFile, window: Window) -> Manifest:
        """Return the manifest of a program that molprof did not make."""
        marks, model = self.marks, self._model
        settings = self._settings(run, window)
        repeat = None if marks.full else marks.repeat()
        constraining = [name for batch in self._batches for name in batch.constraining_names]
        limits = {batch.limit for batch in self._batches}
        sampled = None if marks.recorded is None else marks.recorded.functions
        if sampled is not None and not (constraining or sampled.stacks):
            sampled = None
        return manifest_of(
            self._output,
            _device_of(model),
            recorded,
            window,
            run,
            repeats=[] if repeat is None else [repeat],
            timings={},
            settings=CaptureSettings(**settings),
            resolved=Resolved(
                **_sizes_of(model),
                vocabulary=None if self._tokenizer is None else len(self._tokenizer),
                max_new_tokens=limits.pop() if len(limits) == 1 else None,
                processor=", ".join(dict.fromkeys(constraining)) or None,
                processor_parameters={} if self._first is None else constraints_of(self._first),
                placeholder=None,
                not_recorded=[name for name in SETTINGS if name not in settings],
            ),
            machine=self._machine,
            program=self._program(),
            functions=UNSET if sampled is None else sampled,
        )

    def _settings(self, run: Generated, window: Window) -> dict[str, Any]:
        """Return the settings of a capture that the program's first call shows."""
        first, model = self._first, self._model
        computed = (batch.computed for batch in self._batches)
        settings: dict[str, Any] = {
            "model": "unnamed" if model is None else _name_of(model),
            "batch_size": max((*(max(rows, default=0) for rows in run.rows_per_step), *computed)),
            **self._recorded,
            "functions": self._functions,
            "full": window.full,
        }
        if first is not None:
            sampled = bool(config_value(first, "do_sample"))
            names = ("temperature", "top_k", "top_p", "min_p") if sampled else ()
            settings |= {
                "sampling": "sample" if sampled else "greedy",
                "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
                "kv_cache": config_value(first, "cache_implementation") or "dynamic",
                **{name: value for name in names if (value := config_value(first, name))},
            }
        for name in list(settings):
            try:
                SETTINGS[name].check_value(settings[name])
            except (TypeError, UsageError, ValueError):  # what molprof's own runs do not have
                del settings[name]
        return settings

    def _program(self) -> ProgramTotals:
        marks = self.marks
        off = UNSET if self.switched_off is None else list(self.switched_off)
        processors = processor_calls(self._batches, marks)
        if marks.full:
            return ProgramTotals(missed=self._missed, processors=processors, switched_off=off)
        before, after = marks.calls[0].began_ns - self._began_ns, self._ended_ns - marks.calls[-1].ended_ns
        return ProgramTotals(before, after, marks.own_ns, self._missed, marks.estimated_steps, processors, off)


def text_of(problem: BaseException) -> str:
    """Return type and message of an exception."""
    return f"{type(problem).__name__}: {problem}"


def summary_lines(steps: Sequence[int], tokens: int, marks: Clock, machine: Machine | None) -> list[str]:
    """Return a summary in lines. steps: of each batch. machine: during the program."""
    counts = f"{counted(len(steps), 'batch', 'es')}, {counted(tokens, 'token')}"
    if marks.recorded is None or (window := marks.recorded.window) is None:
        return [f"{counts}; every step is recorded"]
    first, last = window.first_step, window.last_step
    profiled, recorded = marks.estimated_steps, last - first + 1
    others = ", all others were timed"
    if profiled > recorded:
        timed = sum(steps) - profiled
        was = "was" if timed == 1 else "were"
        others = f"; {profiled - recorded:,} more ran under the profiler, and {counted(timed, 'step')} {was} timed"
    lines = [f"{counts}; steps {first} to {last} of batch {window.batch} are recorded{others}"]
    if marks.repeat() is None:
        lines.append(
            "no times without the profiler: no timed step is like those under it; call generate once more, or choose "
            "--window"
        )
    elif machine is not None and (doubts := machine.doubts()):
        lines.append(f"times are in doubt: while the program ran, {'; '.join(doubts)}")
    return lines


def processor_calls(batches: Sequence[WrittenBatch], marks: Clock) -> list[ProcessorCalls]:
    """Return the processors of all batches by class and position."""
    counts: Counter[tuple[int, str, bool]] = Counter()
    times: Counter[tuple[int, str, bool]] = Counter()
    steps: Counter[tuple[int, str, bool]] = Counter()
    calls = None if marks.full else marks.calls
    for number, batch in enumerate(batches):
        for index, name in enumerate(batch.processors):
            key = (index, name, index in batch.own)
            counts[key] += 1
            if calls is not None and index < batch.constraining:
                call = calls[number]
                times[key] += call.each_ns[index]
                steps[key] += call.steps - len(call.profiled)
    return [
        ProcessorCalls(name, index, of_program, count, times[key] if steps[key] else None, steps[key] or None)
        for key, count in sorted(counts.items())
        for index, name, of_program in [key]
    ]


def _device_of(model: Any) -> torch.device:
    """Return the device of a model, or of its parameters; the CPU if neither is known."""
    device = getattr(model, "device", None)
    if isinstance(device, torch.device):
        return device
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else iter(())
    return next((item.device for item in parameters), torch.device("cpu"))


def _name_of(model: Any) -> str:
    """Return the name or path that a model was loaded from, or else its class."""
    name = getattr(model, "name_or_path", None)
    return name if isinstance(name, str) and name else type(model).__name__


def _sizes_of(model: Any) -> dict[str, Any]:
    """Return the fields of `Resolved` that a model's config shows."""
    names = ("family", "parameters", "layers", "hidden", "heads", "kv_heads", "logits_width", "dtype", "device")
    resolved: dict[str, Any] = dict.fromkeys(names)
    if model is None:
        return resolved
    try:
        return resolved | sizes(model)
    except (AttributeError, TypeError, ZeroDivisionError):  # of another kind than molprof's own
        family = getattr(getattr(model, "config", None), "model_type", None)
        if isinstance(model, torch.nn.Module):
            parameters = sum(item.numel() for item in model.parameters())
            resolved |= {"parameters": parameters, "device": str(_device_of(model))}
        return resolved | {"family": family if isinstance(family, str) else None}


def _vocabulary(model: Any) -> int | None:
    try:
        size = model.config.get_text_config(decoder=True).vocab_size
    except (AttributeError, TypeError):
        return None
    return size if isinstance(size, int) else None


def _tokenizer_of(model: Any) -> Any:
    """Find the model's tokenizer among all objects: by its name, or the only one of a fitting size; None if unclear.

    It is looked for among all objects. The model does not have it, nor have most calls of `generate`, a program makes
    it before molprof could note it, and one that is loaded anew by the model's name may have other tokens than the
    program's.
    """
    gc.collect()  # what the program no longer has is not its tokenizer
    loaded = [item for item in gc.get_objects() if issubclass(type(item), PreTrainedTokenizerFast)]
    named = [item for item in loaded if item.name_or_path and item.name_or_path == getattr(model, "name_or_path", None)]
    if named:
        return named[0]
    width = _vocabulary(model) or 0  # often padded
    fitting = [item for item in loaded if width // 2 < len(item) <= width]
    return fitting[0] if len(fitting) == 1 else None
