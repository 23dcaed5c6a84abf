"""Advice on a run's constraint that the user of this processor or engine can follow."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from molprof.analysis.figures.run_model import Run
from molprof.common.engine_settings import CONSTRAINTS, ENGINES, TABLE, VLLM
from molprof.common.manifest import ProgramTotals
from molprof.common.measured import MeasuredRun
from molprof.common.settings import WHOLE_TEXT
from molprof.common.values import number_text, per, percent_text, time_text

_CAPTURE_ALL = "This capture again with --processor all measures each with it."
# For a processor of a program's own: which engines there are, nothing else of the report says.
_ENGINES = (
    "If it keeps to a JSON schema: molprof bench masks SCHEMA.json ranks the engines for that, and molprof capture "
    "--schema SCHEMA.json --processor all measures them with the model."
)
_SHORTER = "Leave fewer characters free (maxLength, patterns, white space)."
# Packages that make masks step by step, so that none can be made in advance.
_MASK_PACKAGES = ("xgrammar", "llguidance", "outlines", "lmformatenforcer")
_TAKE_TABLE = f"Take --processor {TABLE}"
# An engine of which so much less of the answers is valid did not do the same work.
_FEWER_VALID = 0.25
# With less of the time it is the model, or what else a step does, that sets it.
SMALL = 0.05
# With fewer forced tokens there is little to gain from appending them at once.
_LEAST_FORCED = 0.1
# From these shares of its time on advice is about what passes outside operators, or about numbers read from tensors.
_MOSTLY, _LEAST_READING = 0.6, 0.1
# Arguments of `generate` that forbid or force tokens. Others only weigh them, or end answers.
_ARGUMENTS = (
    "prefix_allowed_tokens_fn", "bad_words_ids", "force_words_ids", "constraints", "suppress_tokens",
    "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "no_repeat_ngram_size", "sequence_bias",
    "min_length", "min_new_tokens",
)  # fmt: skip
_PREFIX = "prefix_allowed_tokens_fn"
# How engines are told to make masks otherwise.
_BACKENDS = {
    "vllm": "Try another backend (--structured-outputs-config.backend guidance), or molprof's table where the "
    "constraint is regular (--logits-processors molprof.profiler.constraints.vllm_plugin:TableLogitsProcessor).",
    "sglang": "Try another backend (--grammar-backend llguidance).",
}
# What molprof's processors of molecules that walk no table have in its place, and those that do.
_AS_TABLE = {"generic": "vectorized", "qwen": "vectorized", "xgrammar": "grammar", "llguidance": "grammar"}
_TABLES = (TABLE, "vectorized", "placeholder", "truncate", "grammar")


class ConstraintContext(Struct):
    """Known properties of a run's constraint, as input of its advice."""

    name: str  # of the processor, or of the arguments
    share: float | None = None  # of the steps; None: not recorded
    outside: float = 0.0  # of its recorded time, what passes outside operators
    reads: float = 0.0  # numbers per step read back from tensors
    reading: float = 0.0  # of its recorded time, what that takes
    forced: float = 0.0  # of the tokens, those that were the only one allowed
    function: str | None = None  # Python function with most of its time; None: no stacks
    is_by_row: bool = False


def constraining(run: Run) -> str | None:
    """Return the name of a run's constraint: its processors, else arguments of `generate`; None without one."""
    if run.setup.processor is not None:
        return run.setup.processor
    is_program = isinstance(run.program, ProgramTotals)
    arguments = run.setup.processor_parameters if is_program else getattr(run.setup, "generate_args", None)
    names: Iterable[str] = arguments or ()
    return ", ".join(name for name in _names(names) if name in _ARGUMENTS) or None


def _names(arguments: Iterable[str]) -> list[str]:
    """Return the names of arguments, also of `KEY=VALUE` texts."""
    return [item.partition("=")[0] for item in arguments]


def remedy_of_run(run: Run, course: ConstraintContext) -> str:
    """Return the advice on a run's constraint, the most useful sentence first."""
    if course.share is not None and course.share < SMALL:
        rest = _forced(run, course)
        return f"Leave it: the steps can lose {percent_text(course.share)} at most.{f' {rest}' if rest else ''}"
    if isinstance(run.program, ProgramTotals):
        return _of_program(run, course)
    if ":" in course.name:
        return f"{_of_own(course)} {_where_to_begin(course, 'molprof capture')}"
    if run.setup.engine == VLLM:
        return f"{_best_engine(run) or _CAPTURE_ALL} {_SHORTER}"
    if run.setup.processor is None:
        return f"Leave out what the answers do not need of {course.name}; molprof run times each processor apart."
    return _of_captured(run, course)


def _of_captured(run: Run, course: ConstraintContext) -> str:
    """Return the advice on a processor that comes with molprof."""
    name, setup = course.name, run.setup
    constraints = {kind: getattr(setup, kind, None) for kind in CONSTRAINTS}
    instead: Any = (setup.processor_parameters or {}).get("instead_of", {})
    if constraints["grammar_file"] is not None and name in ENGINES:
        if measured := _best_engine(run):
            return f"{measured} {_of_parts(run)}".strip()
        other = next(engine for engine in ENGINES if engine != name)
        return f"Capture the other engine that takes a grammar beside it: --processor {name},{other}."
    if isinstance(instead, dict) and instead.get(TABLE):
        reason = (
            f"No table was made ({instead[TABLE]}): write the constraint without that, and a step looks its masks up."
        )
        return f"{reason} {_best_engine(run) or question(run)}"
    if name in WHOLE_TEXT and name != TABLE and any(value is not None for value in constraints.values()):
        other = _best_engine(run) or question(run)
        return " ".join(filter(None, (other, _of_parts(run), _forced(run, course, other.startswith(_TAKE_TABLE)))))
    if name == TABLE and (other := _best_engine(run)):
        return " ".join(filter(None, (other, _forced(run, course))))
    if name in _AS_TABLE:
        faster = f"Take --processor {_AS_TABLE[name]}: masks that are made before the first step, for all rows at once."
        return f"{faster} {_forced(run, course, True)}".strip()
    return _forced(run, course) or "A step looks its masks up already: larger batches share it among more rows."


def _best_engine(run: Run) -> str:
    """Return the engine to use instead, of those that this capture measured on the same prompts; empty without any."""
    session = run.session
    measured = [] if session is None or not session.measured else session.measured
    mine = next((item for item in measured if session is not None and item.name == session.run), None)
    return "" if mine is None else engine_advice(mine, measured, lambda item: "in this capture")


def question(run: Run) -> str:
    """Return the advice to measure other engines, as the trace shows none."""
    constraints = {kind: getattr(run.setup, kind, None) for kind in CONSTRAINTS}
    return f"{_bench(run, constraints)} {_CAPTURE_ALL}".strip()


def engine_advice(mine: MeasuredRun, measured: Sequence[MeasuredRun], where: Callable[[MeasuredRun], str]) -> str:
    """Return a sentence on the best engine among those measured on the same prompts; empty without another.

    where: says where a run was measured.
    """
    rivals = [item for item in measured if item is not mine and item.constraint_step_ns]
    if not rivals or not (own_ns := mine.constraint_step_ns):
        return ""
    # One that writes more invalid answers does less.
    least_valid = (per(mine.valid, mine.judged) or 0) - _FEWER_VALID
    others = [
        item for item in rivals if item.wrong <= mine.wrong and (per(item.valid, item.judged) or 0) >= least_valid
    ]
    costs = [(item.constraint_step_ns or 0, item) for item in others]
    lower = sorted((cost for cost in costs if cost[0] < own_ns), key=lambda cost: cost[0])
    if not lower:
        locations = ", ".join(dict.fromkeys(map(where, rivals)))
        return (
            f"Keep it: of {len(rivals) + 1} engines measured {locations} it costs least, {time_text(own_ns)} per step."
        )
    # One that cuts texts into more tokens may cost more over whole answers.
    kept_ns, whole_ns = mine.step_mean_ns - own_ns, mine.step_mean_ns * mine.steps
    shorter = [(ns, item) for ns, item in lower if (kept_ns + ns) * item.steps < whole_ns]
    ns, best = (shorter or lower)[0]
    if not shorter:
        steps = f"but took {best.steps:,} steps, not {mine.steps:,}"
        return f"Keep it: {best.processor} costs less per step ({time_text(ns)}, not {time_text(own_ns)}), {steps}."
    valid = f", {best.valid} of {best.judged} answers valid" if best.judged else ""
    return (
        f"Take --processor {best.processor}: {time_text(ns)} per step {where(best)}, not {time_text(own_ns)}{valid}; "
        f"a step can lose {percent_text((own_ns - ns) / mine.step_mean_ns)}."
    )


def _bench(run: Run, constraints: Mapping[str, str | None]) -> str:
    """Return the command that measures all engines on this constraint within seconds."""
    kind, value = next(((kind, value) for kind, value in constraints.items() if value is not None), ("", ""))
    if not value:
        return ""
    what = shlex.quote(value) if kind == "schema" else f"--{kind.replace('_', '-')} {shlex.quote(value)}"
    name = shlex.quote(run.setup.tokenizer)
    rows = max(1, round(run.row_steps / run.steps)) if run.steps else run.setup.batch_size
    command = f"molprof bench masks {what} --tokenizer {name} --batch {rows} -o masks.jsonl"
    return f"Rank all installed engines on this constraint, without the model: {command}."


def _of_parts(run: Run) -> str:
    """Return the advice on the part that takes most of a step's masks."""
    parts = {name: ns for name, ns in (run.constraint_ns or {}).items() if name != "read"}
    most = max(parts, key=lambda name: parts[name], default="fill")
    if most == "apply":
        return ""  # which no engine but a table does otherwise
    in_own_loop = "In a loop of your own fill the masks of all rows at once while the forward runs."
    return f"{_SHORTER} {in_own_loop}"


def _forced(run: Run, course: ConstraintContext, takes_another: bool = False) -> str:
    """Return the advice on forced tokens; empty where they are few, or cannot be appended at once."""
    setup = run.setup
    if course.forced < _LEAST_FORCED or setup.own_loop or isinstance(run.program, ProgramTotals):
        return ""
    # molprof's own loop takes none of these.
    if setup.cache not in ("dynamic", "static") or getattr(setup, "generate_args", None):
        return ""
    if (getattr(setup, "padding_multiple", None) or 1) > 1:
        return ""
    text = f"{percent_text(course.forced)} of tokens need no forward of their own"
    if course.name in _TABLES or takes_another:
        return f"Try --forced-runs: {text}."
    other = _AS_TABLE.get(course.name) if setup.placeholder is not None else None
    return f"Try --processor {other} --forced-runs: {text}." if other else ""


def _of_own(course: ConstraintContext) -> str:
    """Return the advice on a processor of the user's own."""
    if course.is_by_row:
        return "Mask all rows with one tensor operation in place of a loop over them."
    if course.reading >= _LEAST_READING:
        return (
            f"Read token ids once per step (input_ids.tolist()) in place of {number_text(course.reads)} single "
            "numbers, or keep them from step to step."
        )
    if course.outside >= _MOSTLY:
        return "Make in advance what Python works out in each step: a mask by state, which a step looks up."
    return "Keep masks as tensors on the logits' device, and apply them with one operation in place."


def _where_to_begin(course: ConstraintContext, command: str) -> str:
    """Return the locations in the program to look at first, as a sentence."""
    if course.function is not None:
        return f"Begin in {course.function}; molprof report by source TRACE has all functions."
    return f"Its lines: {command} --stacks, then molprof report by source TRACE."


def _of_program(run: Run, course: ConstraintContext) -> str:
    assert isinstance(run.program, ProgramTotals)
    calls = sorted(run.program.processors, key=lambda item: -(item.time_ns or 0))
    parameters = run.setup.processor_parameters or {}
    lines = _where_to_begin(course, "molprof run")
    first = next((item for item in calls if item.time_ns), calls[0] if calls else None)
    if first is None or (first.name.startswith("PrefixConstrained") and _PREFIX in parameters):
        if _PREFIX in parameters:
            return (
                "Look allowed tokens up in a trie or table by state that is made once: transformers calls "
                f"{parameters[_PREFIX]} for each row of each step, and makes a tensor of the list. {lines}"
            )
        return f"Leave out what the answers do not need of {course.name}. {lines}"
    if fix := _of_package(first.name):
        return f"{fix} {lines}"
    if not first.own:
        origin = ", ".join(parameters) or "the generation config"
        return f"transformers makes {first.name} of {origin}: leave out what the answers do not need. {lines}"
    return f"{_of_own(course)} {lines} {_ENGINES}"


def remedy_of_engine(
    phases: Mapping[str, Mapping[str, int | None]], times: Mapping[str, int], programs: Iterable[str], share: float
) -> str:
    """Return the advice to the user of an engine on the largest part of masks.

    times: of filling, applying, accepting.
    """
    if share < SMALL:
        return f"Leave it: the time can lose {percent_text(share)} at most."
    compile_ns = (phases.get("grammar_compile") or {}).get("time_ns") or 0
    most = max(times, key=lambda kind: times[kind])
    if compile_ns > times[most]:
        return "Compile known grammars before requests come, and send the same text for the same grammar."
    in_own_loop = {
        "apply": "Apply the masks of all rows on the logits' device, with one kernel.",
        "accept": "Accept tokens while the next forward runs.",
        "fill": "Fill masks while the forward runs, for all rows at once.",
    }
    other = next((text for program, text in _BACKENDS.items() if program in programs), None)
    shorter = " Shorten what the constraint leaves open (maxLength, white space)." if most == "fill" else ""
    return f"{in_own_loop[most] if other is None else other}{shorter}"


def _of_package(name: str) -> str:
    """Return the advice on a processor of a package that makes masks; empty for any other.

    name: its class or source file.
    """
    if not any(package in name.lower().replace("_", "").replace("-", "") for package in _MASK_PACKAGES):
        return ""
    whole = " (BatchGrammarMatcher)" if "xgrammar" in name.lower() else ""
    return (
        "Compile the grammar once, and give each generate a new processor of it; fill the masks of all rows at "
        f"once{whole}, while the forward runs. molprof bench masks SCHEMA.json measures other engines on it."
    )


def remedy_of_loop(function: str | None, is_small: bool, source: str = "") -> str:
    """Return the advice on processors known by stacks alone; source: the location with most of the time."""
    if is_small:
        return "Leave it: the model sets the time."
    begin = "" if function is None else f" Begin in {function}."
    if fix := _of_package(source):
        return f"{fix}{begin}"
    return f"Look up masks that were made in advance, for all rows at once.{begin} molprof run times the bare program."
