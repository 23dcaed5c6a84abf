"""The record of a finished run for the manifest: every molecule, and the resolved settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from molprof.common.engine_settings import VLLM
from molprof.common.manifest import KIND_LETTERS, Disagreement, Resolved, SequenceRun, TemplateCounts, Timings
from molprof.common.settings import STATIC_CACHES, CaptureSettings
from molprof.common.values import bytes_text, factor_text, time_text
from molprof.profiler.capture.answers import checks_of_prompt, cut_otherwise, led_nowhere, problem_of
from molprof.profiler.capture.watched import Masked
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.forced import cannot_drop
from molprof.profiler.engines.generation import otherwise
from molprof.profiler.engines.runner import PassResult, Runner
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.load import sizes
from molprof.profiler.molecules.kinds import classify, judge
from molprof.profiler.molecules.placeholders import needs
from molprof.profiler.molecules.smiles import Molecule
from molprof.profiler.recording.sequences import sequence_run


def sequence_runs(
    runner: Runner,
    plans: list[BatchPlan],
    result: PassResult,
    watched: Sequence[tuple[BatchResult, list[Disagreement]]] | None = None,
    masked: Sequence[Sequence[Masked]] | None = None,
) -> tuple[list[SequenceRun], list[list[str]]]:
    """Return the record of every molecule of a timed pass, and the text of each of its tokens.

    Both are in the order of the input.

    `masked` is what the pass that counts found, by batch and prompt. `watched` is what the pass for disagreement wrote
    and found; a row that it wrote otherwise has no disagreement.
    """
    loaded, runs = runner.loaded, []
    prompts = {
        (prompt.constraint, prompt.line * (prompt.body is not None)): prompt
        for plan in plans
        for prompt in plan.prompts
    }
    checks = {key: checks_of_prompt(prompt, runner.settings) for key, prompt in prompts.items()}
    for number, (plan, batch) in enumerate(zip(plans, result.batches, strict=True)):
        for row, (prompt, tokens) in enumerate(zip(plan.prompts, batch.rows, strict=True)):
            ids = {"sequence": plan.sequences[row], "batch": number, "row": row}
            width = len(loaded.tokenizer(prompt.text)["input_ids"])
            steps = None if batch.appended is None else batch.appended[row]
            run = sequence_run(prompt.text, width, tokens, loaded.target.table, loaded.eos, steps, **ids)
            if batch.joined is not None:
                run = replace(run, joined=batch.joined[row])
            if batch.arrived is not None:
                run = replace(run, arrived=batch.arrived[row])
            if prompt.molecule is not None:
                run = replace(run, **_of_molecule(runner, prompt.molecule, tokens))
            else:
                cut = not run.kinds.endswith(KIND_LETTERS["eos"])
                pieces = [loaded.target.table.join([token]) for token in tokens]
                wasted = led_nowhere(pieces[: len(tokens) - (not cut)], cut)
                junk = (KIND_LETTERS["junk"] if one else kind for kind, one in zip(run.kinds, wasted, strict=False))
                needed = len(loaded.tokenizer(run.text, add_special_tokens=False)["input_ids"])
                run = replace(run, kinds="".join(junk) + run.kinds[len(wasted) :], needed_tokens=needed)
            key = prompt.constraint, prompt.line * (prompt.body is not None)
            if (judged := checks[key]) and run.valid is not False:
                seen = _seen_by_client(runner, run.text, tokens)
                problem = problem_of(judged, seen, run.prompt, not run.kinds.endswith(KIND_LETTERS["eos"]))
                if problem is not None and seen != run.text:
                    problem += "; vLLM leaves special tokens out of its texts"
                run = replace(run, valid=problem is None, problem=problem)
            if watched is not None and watched[number][0].rows[row] == tokens:
                unlike = cut_otherwise(loaded.tokenizer, loaded.target.table, tokens, loaded.eos)
                run = replace(run, disagreement=replace(watched[number][1][row], unlike=unlike))
            run = replace(run, drafts=None if batch.drafts is None else batch.drafts[row])
            if masked is not None:
                counts, forced, stood = masked[number][row]
                run = replace(run, masked=counts, masked_logits=counts.total, forced=forced, stood=stood)
            runs.append(run)
    runs.sort(key=lambda run: run.sequence)
    return runs, [[loaded.target.table.join([token]) for token in run.token_ids] for run in runs]


def _seen_by_client(runner: Runner, text: str, tokens: Sequence[int]) -> str:
    """Return a client's text for some tokens: vLLM omits special tokens (`skip_special_tokens`)."""
    if runner.settings.engine_name != VLLM:
        return text
    special = {number for number, token in runner.loaded.tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(runner.loaded.eos)
    return runner.loaded.target.table.join([token for token in tokens if token not in special])


def _of_molecule(runner: Runner, molecule: Molecule, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a `SequenceRun` that only a molecule has."""
    loaded, form = runner.loaded, runner.loaded.target.form
    classified = classify(tokens, loaded.target.table, loaded.eos, form=form)
    valid, problem = judge(classified.text, molecule, classified.kinds, form)
    counts = None
    if getattr(runner.processor, "fixed_length", runner.processor is not None):
        (template,) = runner.templates.build([molecule])
        per_block = template.free_per_block.tolist()
        counts = TemplateCounts(len(template.ids), sum(per_block), len(per_block), per_block)
    return {
        "smiles": molecule.smiles,
        "kinds": classified.kinds,
        "blocks": classified.blocks,
        "text": classified.text,
        "valid": valid,
        "problem": problem,
        "malformed_blocks": classified.malformed_blocks,
        "cut_blocks": classified.cut_blocks,
        "needed_per_block": needs(loaded.tokenizer, classified.insides, form=form),
        "template": counts,
    }


def resolved(runner: Runner, plans: list[BatchPlan], result: PassResult) -> Resolved:
    """Return the resolved settings: the model's properties, and the values that the passes used."""
    settings, loaded, processor = runner.settings, runner.loaded, runner.processor
    name, parameters = (None, {}) if processor is None else (processor.name, processor.parameters)
    name, parameters = getattr(runner.engine, "constraint", None) or (name, parameters)
    reads = [batch.host_reads for batch in result.batches]
    return Resolved(
        **{**sizes(loaded.model), "device": str(loaded.target.device)},
        vocabulary=len(loaded.tokenizer),
        max_new_tokens=max(plan.max_new_tokens for plan in plans),
        processor=name,
        processor_parameters=parameters,
        placeholder=None if processor is None else runner.placeholder,
        sorted=runner.sorts([prompt for plan in plans for prompt in plan.prompts]),
        weights=settings.weights if settings.model in ARCHITECTURES else None,
        host_reads=None if None in reads else sum(filter(None, reads)),
        template_threads=None if processor is None else runner.template_threads,
        cannot_drop=cannot_drop(loaded, settings),
        declared_otherwise=otherwise(settings, loaded.generation),
    )


def static_cache_notes(runner: Runner, plans: Sequence[BatchPlan]) -> tuple[str, ...]:
    """Return the size of a static KV cache, which is allocated whole; nothing without one."""
    if runner.settings.kv_cache not in STATIC_CACHES:
        return ()
    model = runner.loaded.model
    model_sizes = sizes(model)
    largest = max(plans, key=lambda plan: plan.rows * (plan.prompt_width + plan.max_new_tokens))
    columns = runner.settings.max_cache_length or largest.prompt_width + largest.max_new_tokens
    # Keys and values.
    values = 2 * model_sizes["layers"] * model_sizes["kv_heads"] * model_sizes["head_dim"] * largest.rows * columns
    size = bytes_text(values * model.dtype.itemsize)
    return (f"static KV cache: {size} ({largest.rows} rows x {columns} tokens)",)


def overhead_notes(settings: CaptureSettings, timings: Timings) -> list[str]:
    """Return the cost of recording more than operators, in lines."""
    names = {"Python stacks": settings.stacks, "modules": settings.modules and not settings.stacks}
    names |= {"shapes": settings.shapes, "memory": settings.memory}
    recorded = [name for name, is_recorded in names.items() if is_recorded]
    if not recorded or not timings.unprofiled_steps_ns:
        return []
    recorded_ns, timed_ns = timings.profiled_steps_ns, timings.unprofiled_steps_ns
    what = " and ".join(recorded)
    return [
        f"with {what}, the recorded steps took {factor_text(recorded_ns / timed_ns)} their time in the timed passes "
        f"({time_text(recorded_ns)}, {time_text(timed_ns)}), which ran without the profiler"
    ]
