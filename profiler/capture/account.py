"""What the manifest holds of a finished run: every molecule, and what came of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from molprof.common.manifest import Disagreement, MaskedLogits, Resolved, SequenceRun, TemplateCounts
from molprof.common.settings import STATIC_CACHES
from molprof.common.values import bytes_text
from molprof.profiler.engines.batches import BatchPlan, BatchResult, PassResult
from molprof.profiler.engines.runner import Runner
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.device import free_bytes
from molprof.profiler.models.load import sizes
from molprof.profiler.molecules.kinds import classify, judge, plain
from molprof.profiler.molecules.placeholders import needs

# Of the free memory, of which a run needs more than the cache.
_LARGE_RATIO = 0.5


def sequence_runs(
    runner: Runner,
    plans: list[BatchPlan],
    result: PassResult,
    watched: Sequence[tuple[BatchResult, list[Disagreement]]] | None = None,
    masked: Sequence[Sequence[MaskedLogits]] | None = None,
) -> tuple[list[SequenceRun], list[list[str]]]:
    """The account of every molecule of a timed pass in the order of the input, and the text of each of its tokens.

    `masked` is what the pass that counts found, by batch and prompt. `watched` is what the pass for disagreement wrote
    and found; a row that it wrote otherwise has no disagreement.
    """
    loaded, form = runner.loaded, runner.loaded.target.form
    runs: list[SequenceRun] = []
    for number, (plan, batch) in enumerate(zip(plans, result.batches, strict=True)):
        for row, (prompt, tokens) in enumerate(zip(plan.prompts, batch.rows, strict=True)):
            if prompt.molecule is None:
                found = plain(tokens, loaded.target.table, loaded.eos)
            else:
                found = classify(tokens, loaded.target.table, loaded.eos, form=form)
            disagreement = None
            if watched is not None and watched[number][0].rows[row] == tokens:
                disagreement = watched[number][1][row]
            valid, problem, counts = None, None, None
            if prompt.molecule is not None:
                valid, problem = judge(found.text, prompt.molecule, found.kinds, form)
                if getattr(runner.processor, "fixed_length", runner.processor is not None):
                    (template,) = runner.templates.build([prompt.molecule])
                    per_block = template.free_per_block.tolist()
                    counts = TemplateCounts(len(template.ids), sum(per_block), len(per_block), per_block)
            runs.append(
                SequenceRun(
                    sequence=plan.sequences[row],
                    batch=number,
                    row=row,
                    smiles=None if prompt.molecule is None else prompt.molecule.smiles,
                    prompt=prompt.text,
                    prompt_tokens=len(loaded.tokenizer(prompt.text)["input_ids"]),
                    token_ids=list(tokens),
                    kinds=found.kinds,
                    blocks=found.blocks,
                    text=found.text,
                    valid=valid,
                    problem=problem,
                    malformed_blocks=found.malformed_blocks,
                    cut_blocks=found.cut_blocks,
                    masked_logits=None if masked is None else masked[number][row].total,
                    template=counts,
                    needed_per_block=needs(loaded.tokenizer, found.insides, form=form),
                    disagreement=disagreement,
                    masked=None if masked is None else masked[number][row],
                    step_tokens=None if batch.appended is None else list(batch.appended[row]),
                )
            )
    runs.sort(key=lambda run: run.sequence)
    return runs, [[loaded.target.table.join([token]) for token in run.token_ids] for run in runs]


def resolved(runner: Runner, plans: list[BatchPlan], result: PassResult) -> Resolved:
    """What came of the settings: the model as it is, and what the passes used."""
    settings, loaded, processor = runner.settings, runner.loaded, runner.processor
    return Resolved(
        **sizes(loaded.model),
        vocabulary=len(loaded.tokenizer),
        max_new_tokens=max(plan.max_new_tokens for plan in plans),
        processor=None if processor is None else processor.name,
        processor_parameters={} if processor is None else processor.parameters,
        placeholder=None if processor is None else runner.placeholder,
        sorted=runner.sorts([prompt for plan in plans for prompt in plan.prompts]),
        weights=settings.weights if settings.model in ARCHITECTURES else None,
        host_reads=sum(batch.host_reads or 0 for batch in result.batches) if settings.own_loop else None,
        template_threads=None if processor is None else runner.template_threads,
    )


def static_cache_notes(runner: Runner, plans: Sequence[BatchPlan]) -> tuple[str, ...]:
    """The size of a static KV cache, which is allocated whole, and a warning where memory is short; else nothing."""
    if runner.settings.kv_cache not in STATIC_CACHES:
        return ()
    model: Any = runner.loaded.model
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    largest = max(plans, key=lambda plan: plan.rows * (plan.prompt_width + plan.max_new_tokens))
    columns = runner.settings.max_cache_length or largest.prompt_width + largest.max_new_tokens
    # Keys and values.
    size = 2 * config.num_hidden_layers * heads * width * largest.rows * columns * model.dtype.itemsize
    told = f"static KV cache: {bytes_text(size)} ({largest.rows} rows x {columns} tokens)"
    free = free_bytes(runner.loaded.target.device)
    if free is None or size <= free * _LARGE_RATIO:
        return (told,)
    hint = "a smaller --batch-size or --max-new-tokens makes it smaller"
    return told, f"the static KV cache needs much of the free memory ({bytes_text(free)}): {hint}"
