"""The open questions of the case study: each a text, the runs that settle it, and a function to the answer.

An answer is sentences whose words follow from the figures of a `Study`, for one model or for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from study import Study, change, table

from molprof.analysis.bench.summary import Measured
from molprof.analysis.compare.statistics import LEAST_REPEATS
from molprof.common.errors import MolprofError
from molprof.common.process import OK, TIMED_OUT
from molprof.common.values import count_text, number_text, percent_text, signed_time_text, speed_text, time_text

MODELS = {"llama": "LLaMA", "qwen": "Qwen"}
# Results of `molprof bench` that hold configurations.
_CONFIGURATIONS = ("attention", "batch")
_FEW = f"not settled: too few timed passes to know the noise, would need {LEAST_REPEATS} of each run."


@dataclass(frozen=True)
class Question:
    """A question: `answer` takes a study and one of `models`, and reads `runs` and `results` of it."""

    text: str
    answer: Callable[[Study, str], str]
    runs: tuple[str, ...] = ()  # `{model}` stands for the model
    results: tuple[str, ...] = ()  # files of benchmark results
    models: tuple[str, ...] = tuple(MODELS)  # asked of each; ("",): of all together

    def answers(self, study: Study) -> Iterator[str]:
        """The answers, each with its model, or what they would need."""
        for model in self.models:
            head = f"{MODELS[model]}: " if model else ""
            missing = [name for run in self.runs if (name := run.format(model=model)) not in study.reports]
            missing += [f"{name}.jsonl" for name in self.results if name not in study.results]
            if missing:
                yield f"{head}not settled, would need {', '.join(f'`{name}`' for name in missing)}."
                continue
            try:
                yield head + self.answer(study, model)
            except MolprofError as error:  # such as runs of different work
                yield f"{head}not settled: {error}."


def static_cache(study: Study, model: str) -> str:
    """Warm, and with the first pass, which compiles."""
    static = f"{model}-static"
    warm, beyond_noise = study.factor(model, static)
    run, plain = study.run(static), study.run(model)
    wall_ns, extra_ns, plain_ns = run.wall_ns.median, run.first_pass_extra_ns, plain.wall_ns.median
    if warm is None or extra_ns is None or not plain_ns:
        return "not settled: the runs have no timed passes, or no warm-up pass."
    if beyond_noise is None:
        return _FEW
    first = (wall_ns + extra_ns) / plain_ns
    recompiled = [repeat.compiles for repeat in run.repeats]
    again = (
        "whether timed passes compiled is not recorded"
        if None in recompiled
        else f"the timed passes compiled {count_text(sum(recompiled))} frames"
    )
    noise = "" if beyond_noise else " (within noise)"
    figures = (
        f"warm, a pass with a static cache and a compiled forward takes {change(warm)}{noise} of one with a dynamic "
        f"cache; its first pass, which compiles, takes {change(first)} ({time_text(wall_ns + extra_ns)} against "
        f"{time_text(plain_ns)}); {again}"
    )
    attention = _attention_per_kernel(study, model, static)
    if not beyond_noise:
        verdict = "**Warm, the two caches do not differ.** A script that times the first pass sees compiling alone"
    elif warm < 1 < first:
        verdict = "**Both scripts can be right: the static cache is faster warm, and slower where compiling is timed**"
    elif warm < 1:
        verdict = "**The static cache is faster, even with its compile time**"
    else:
        verdict = "**The static cache is slower even warm, so compile time alone does not explain it**"
    return f"{verdict}: {figures}{attention}."


def _attention_per_kernel(study: Study, dynamic: str, static: str) -> str:
    times = []
    for name in (dynamic, static):
        found = (study.run(name).window.classes or {}).get("attention")
        times.append(found.time_ns / found.count if found and found.count else None)
    if times[0] is None or times[1] is None:
        return ""
    return (
        f"; an attention kernel, which reads the whole static cache, takes {time_text(times[1])} instead of "
        f"{time_text(times[0])}"
    )


def graphs(study: Study, model: str) -> str:
    """Graph launches, and launches of the forward, with and without the LP."""
    found = []
    for name in (f"{model}-static", f"{model}-static-generic"):
        run = study.run(name)
        per_step, steps = study.number(name, "graph_launches_per_step"), run.window.steps
        launches = run.phases["forward"].launches
        if not isinstance(per_step, (int, float)) or launches is None or not steps:
            return "not settled: the traces hold no GPU calls."
        found.append((per_step, launches / steps))
    (without, outside), (with_lp, outside_lp) = found
    if not without:
        verdict = "**No graphs are in use even without the LP**"
    elif with_lp >= without and outside_lp <= outside + 1:
        verdict = "**No, the LP does not break CUDA graphs**"
    elif with_lp:
        verdict = "**The LP changes what graphs cover**"
    else:
        verdict = "**Yes, with the LP no graph is in use**"
    processor = study.value(f"{model}-static-generic", "masking_launches")
    return (
        f"{verdict}: graph launches per step: {number_text(without)} without and {number_text(with_lp)} with it; other "
        f"launches of the forward: {number_text(outside)} and {number_text(outside_lp)}; launches of the LP between "
        f"graphs: {processor}."
    )


def attention_kernels(study: Study, model: str) -> str:
    """What each attention kernel did, alone in its process."""
    cases = [item for item in study.results["attention"] if item.kind == "generate"]
    if not cases:
        return "not settled: `attention.jsonl` holds no case of whole generation."
    asked = {
        "Flash-only SDPA": ("sdpa-flash", None),
        "cuDNN-only SDPA": ("sdpa-cudnn", None),
        "Flash attention 2 with a static cache": ("flash_attention_2", "static"),
    }
    lines = []
    for text, (kernel, cache) in asked.items():
        found = [item for item in cases if item.settings.get("attention") == kernel]
        found = [item for item in found if cache is None or item.settings.get("kv_cache") == cache]
        told = "; ".join(f"{_outcome(item)} ({item.settings.get('kv_cache')} cache)" for item in found)
        lines.append(f"{text}: {told or 'not measured'}.")
    return " ".join(lines) + _by_mask(study)


def _by_mask(study: Study) -> str:
    """Whether a padding mask alone keeps the flash kernel from running."""
    kernels = [item for item in study.results.get("sdpa", ()) if item.settings.get("backend") == "flash"]
    masked = {item.status == OK for item in kernels if item.settings.get("mask") == "padding"}
    plain = {item.status == OK for item in kernels if item.settings.get("mask") != "padding"}
    if not masked or not plain:
        return " Whether a mask is the reason is not settled, would need `sdpa.jsonl` with both."
    if masked == {False} and True in plain:
        return " **A padding mask is the reason for flash**: its kernel runs without one, and never with one."
    return " A padding mask is not the reason for flash: the kernel alone does the same with and without one."


def _outcome(item: Measured) -> str:
    if item.status == OK:
        return f"runs, {speed_text(item.tokens_per_s)} tokens/s"
    reason = (item.message or "").strip().splitlines()
    where = f", in `{item.stack[-1].strip()}`" if item.status == TIMED_OUT and item.stack else ""
    status = "timed out" if item.status == TIMED_OUT else item.status
    return f"{status}{where}" + (f' ("{reason[0][:160]}")' if reason else "")


def gap(study: Study, model: str) -> str:
    """The difference of the two constrained runs by its parts."""
    split = study.split("llama-generic", "qwen-generic")
    ratio, beyond_noise = study.factor("llama-generic", "qwen-generic")
    if beyond_noise is None:
        return _FEW
    if ratio is None or not beyond_noise or split.wall_ns <= 0:
        return f"**There is no gap**: Qwen takes {study.ratio('llama-generic', 'qwen-generic')} the time of LLaMA."
    groups = {
        "finer tokens": ("tokens.useful",),
        "junk and filler tokens": ("tokens.junk", "tokens.filler"),
        "steps on finished rows": ("steps.idle",),
        "masking": tuple(part for part in split.parts if part.startswith("processor.")),
        "launching outside the processor, with an idle GPU": tuple(
            part for part in split.parts if part.endswith((".launch", ".sync")) and not part.startswith("processor.")
        ),
        "GPU work outside the processor": tuple(
            part for part in split.parts if part.endswith(".gpu") and not part.startswith("processor.")
        ),
    }
    times = {text: sum(split.parts.get(part, 0) for part in parts) for text, parts in groups.items()}
    times["all else"] = split.wall_ns - sum(times.values())
    largest = max(times, key=lambda text: times[text] / split.wall_ns)
    share = times[largest] / split.wall_ns
    most = "Most of it is" if share > 0.5 else "Its largest part is"
    body = [(text, signed_time_text(ns), percent_text(ns / split.wall_ns)) for text, ns in times.items()]
    return (
        f"**{most} {largest}** ({percent_text(share)} of {signed_time_text(split.wall_ns)}).\n\n"
        f"{table(('Qwen against LLaMA, both with `generic`', 'time', 'share'), body)}"
    )


def quality(study: Study, model: str) -> str:
    """Valid molecules and blocks, without a constraint, with the position template, and with the grammar."""
    names = {"no LP": model, "`generic`": f"{model}-generic", "`grammar`": f"{model}-grammar"}
    runs = {text: study.run(name) for text, name in names.items()}
    told = "; ".join(
        f"{text}: {count_text(run.valid_molecules)} of {count_text(run.molecules)} valid, "
        f"{count_text(run.malformed_blocks)} malformed blocks, {count_text(run.junk_blocks)} with junk"
        for text, run in runs.items()
    )
    plain, generic, grammar = (run.valid_molecules for run in runs.values())
    if None in (plain, generic, grammar):
        verdict = "**Not settled: validity is not recorded**"
    elif generic >= plain:
        verdict = "**It did not fall in these runs**"
    elif grammar > generic:
        verdict = "**The fixed number of positions costs validity: a constraint without it keeps more**"
    else:
        verdict = "**It falls under both constraints, so the fixed number of positions alone does not explain it**"
    forbidden = runs["`generic`"].disagreement
    rejected = "" if forbidden is None else (
        f" `generic` forbids the model's first choice at {percent_text(forbidden.all.forbidden_ratio)} of the tokens."
    )  # fmt: skip
    return f"{verdict}. {told}.{rejected}"


def fastest(study: Study, model: str) -> str:
    """Of the captures that lose no valid molecule against the unconstrained one."""
    runs = {name: report.run for name, report in study.reports.items() if _of(model, name) and report.run is not None}
    least = runs[model].valid_molecules
    if least is None:
        return "not settled: validity is not recorded."
    valid = {
        name: run.wall_ns.median / run.molecules
        for name, run in runs.items()
        if run.valid_molecules is not None
        and run.valid_molecules * runs[model].molecules >= least * run.molecules
        and run.wall_ns.median is not None
    }
    if not valid:
        return "not settled: no valid run has timed passes."
    best = min(valid, key=lambda name: (valid[name], name))
    rejected = sorted(set(runs) - set(valid))
    left_out = f" Fewer valid molecules or no times: {', '.join(f'`{name}`' for name in rejected)}." if rejected else ""
    return (
        f"**`{best}`**: {time_text(valid[best])} per molecule, {change(valid[best] / valid[model])} of no LP with a "
        f"dynamic cache, of {count_text(len(valid))} captures that lose no valid molecule.{left_out}"
        f"{_fastest_measured(study, model)}"
    )


def _fastest_measured(study: Study, model: str) -> str:
    """Of the configurations that `molprof bench` measured."""
    cases = [item for name in _CONFIGURATIONS for item in study.results.get(name, ())]
    found = [item for item in cases if item.status == OK and item.settings.get("model") == model and item.tokens_per_s]
    if not found:
        return " Configurations of `molprof bench` are not measured."
    best = max(found, key=lambda item: (item.tokens_per_s or 0.0, item.label))
    return (
        f" Of {count_text(len(found))} configurations of `molprof bench`: {best.label}, "
        f"{speed_text(best.tokens_per_s)} tokens/s."
    )


def _of(model: str, name: str) -> bool:
    return name == model or name.startswith(f"{model}-")


QUESTIONS = (
    Question(
        "Why is the static cache faster in one script and slower in another, even without the LP?",
        static_cache,
        ("{model}", "{model}-static"),
    ),
    Question("Does the LP break CUDA graphs?", graphs, ("{model}-static", "{model}-static-generic")),
    Question(
        "Why does flash-only SDPA find no kernel, and why do cuDNN-only and flash attention 2, static cache, hang?",
        attention_kernels,
        results=("attention",),
        models=("",),
    ),
    Question(
        "How much of Qwen's gap is finer tokens, junk, masking, launches, idle GPU, finished rows?",
        gap,
        ("llama-generic", "qwen-generic"),
        models=("",),
    ),
    Question("Why do coordinates get worse under the LP?", quality, ("{model}", "{model}-generic", "{model}-grammar")),
    Question("Which configuration is the fastest that is valid?", fastest, ("{model}",)),
)
