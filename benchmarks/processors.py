#!/usr/bin/env python3
"""What each logits processor costs and does to the text, side by side, as tables in Markdown.

    python benchmarks/processors.py [-n 64] [--batch-size 32] [--rounds 2] [--models qwen,llama] [--only none,grammar]

Same model, molecules, dtype, device and greedy decoding for all, in one process. Each round runs every processor once;
times are ratios to no processor within a round, medians over rounds: of a whole pass, and of the model's forward in a
decode step, which no processor should change. On a CPU they are ratios of CPU time, which other processes disturb less
than wall time. Absolute figures hold for one machine on one day. The second table has the coordinates.

    python benchmarks/processors.py --whole [--batch-size 32] [--rounds 3] [--models qwen,llama]

Processors of schemas, regular expressions and choices instead, without a model: each masks the same random scores along
the same answers. Time of a step, divided by its rows; a percentile is one of all steps. torch has one thread; the
packages take as many as they choose, and on a CPU the time of all is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from shared import generation_parser, keep, progress, table

from molprof.common.errors import MissingExtraError, MolprofError
from molprof.common.manifest import STEP_PHASES, SequenceRun
from molprof.common.settings import CaptureSettings
from molprof.common.values import count_text, factor_text, percent_text, time_text
from molprof.profiler.capture.account import sequence_runs
from molprof.profiler.constraints import OF_MOLECULES, make_processor
from molprof.profiler.constraints.base import Rows
from molprof.profiler.constraints.constraint import table as table_processor
from molprof.profiler.constraints.engines import Constraint, LLGuidance, XGrammar
from molprof.profiler.engines.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.device import on_gpu, synchronize
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.conformers import bond_errors, reference_conformers
from molprof.profiler.molecules.prompts import Prompt, read_prompts
from molprof.profiler.molecules.smiles import read_positions, require_rdkit
from molprof.profiler.recording.clock import Clock

WARM_STEPS = 40
HEADINGS = (
    "processor", "time", "forward", "share of a step", "per token", "set-up per molecule", "tokens", "junk", "filler",
    "malformed", "valid",
)  # fmt: skip


@dataclass(frozen=True)
class Round:
    """One timed pass. Times are CPU time on a CPU; on a GPU wall time, the device synchronized after each phase."""

    time_ns: int
    phases_ns: dict[str, int]
    batches: int
    steps: int
    row_steps: int

    @property
    def forward_ns(self) -> float:
        """The model's forward per decode step."""
        return self.phases_ns["forward"] / (self.steps - self.batches)

    @property
    def processor_ratio(self) -> float:
        """The processor's share of all steps."""
        spent = self.phases_ns
        return spent["processor"] / sum(spent.get(phase, 0) for phase in ("prefill", *STEP_PHASES))


@dataclass(frozen=True)
class Cost:
    """What a processor costs and writes; name `none`: no processor."""

    name: str
    rounds: list[Round]
    runs: list[SequenceRun]  # of the last round


def runner(loaded: LoadedModel, processor: Any, **settings: Any) -> Runner:
    """Return a greedy runner with `settings` of `CaptureSettings` besides the model."""
    return Runner(loaded, processor, CaptureSettings(loaded.name, template_threads=1, **settings))


WORDS = ["Anna", "Boris", "Chloé", "Dmitri", "Élodie", "Fatima", "Grace", "Hiro", "Ines", "Jürgen"]


def _people(number: int) -> dict[str, Any]:
    return {
        "name": WORDS[number % 10],
        "age": number * 7 % 100,
        "city": f"{WORDS[number // 3 % 10]}ville on the {WORDS[number // 7 % 10]}",
        "tags": ["a", "bc"][: number % 3],
    }


_TEXT = {"type": "string", "maxLength": 60}
_PERSON = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": _TEXT,
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
    },
    "required": ["name", "age", "city", "tags"],
    "additionalProperties": False,
}
# What answers keep to, and an answer by number.
WHOLES: list[tuple[Constraint, Callable[[int], str]]] = [
    (Constraint("choices", "yes,no,perhaps not"), lambda number: ("yes", "no", "perhaps not")[number % 3]),
    (
        Constraint("regex", "[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]"),
        lambda number: f"20{number:02}-0{number % 9 + 1}-1{number % 10}T1{number % 10}:0{number % 10}",
    ),
    (
        Constraint("regex", "[A-Z][a-z]{1,12}( [A-Za-z]{1,12}){0,5}"),
        lambda number: f"Anna {'met Grace ' * (number % 3)}today",
    ),
    (
        Constraint("regex", "[^\\n]{1,80}"),
        lambda number: f"{WORDS[number % 10]} said: «{number} times»; and then left.",
    ),
    (Constraint("schema", json.dumps(_PERSON)), lambda number: json.dumps(_people(number), ensure_ascii=False)),
]
WHOLE_HEADINGS = ("constraint", "processor", "made in", "per token, p50", "p90", "p99", "largest")


@dataclass(frozen=True)
class WholeCost:
    """What a constraint costs in a processor."""

    constraint: str
    processor: str
    made_ns: int
    steps_ns: list[float]  # of each step, by row

    def row(self) -> tuple[str, ...]:
        ordered = sorted(self.steps_ns)
        shown = (ordered[min(int(len(ordered) * share), len(ordered) - 1)] for share in (0.5, 0.9, 0.99, 1))
        return (f"`{self.constraint}`", self.processor, time_text(self.made_ns), *map(time_text, shown))


def along(
    target: ProcessorTarget, whole: Constraint, answer: Callable[[int], str], options: argparse.Namespace
) -> list[WholeCost]:
    """Return the cost of a constraint in each processor that takes one, in turns, along the same answers."""
    torch.set_num_threads(1)
    size = options.batch_size
    texts = [target.tokenizer(answer(number), add_special_tokens=False)["input_ids"] for number in range(size)]
    steps = max(map(len, texts)) + 1
    ids = torch.tensor([[0, *text, *[target.eos] * (steps - len(text))] for text in texts], device=target.device)
    scores = torch.randn((size, target.logits_width), device=target.device)
    makers: dict[str, Any] = {"table": table_processor, "xgrammar": XGrammar, "llguidance": LLGuidance}
    clock = time.perf_counter_ns if on_gpu(target.device) else time.process_time_ns
    made: dict[str, Any] = {}
    found: dict[str, WholeCost] = {}
    named = "schema of a person" if whole.kind == "schema" else whole.text
    for name in options.only.split(",") if options.only else makers:
        began = clock()
        made[name] = makers[name](target, whole)
        found[name] = WholeCost(named, made[name].name, clock() - began, [])
    rows = Rows([Prompt(1, "", "", None)] * size, 1)
    for number in range(options.rounds + 1):
        for name, processor in made.items():
            progress(f"{named} {name}, round {number} of {options.rounds}")
            batch = processor.start(rows)
            for step in range(steps):
                given = scores.clone()
                synchronize(target.device)
                began = clock()
                masked = batch(ids[:, : step + 1], given)
                synchronize(target.device)
                spent_ns = (clock() - began) / size
                if number:
                    found[name].steps_ns.append(spent_ns)
                elif not masked.gather(1, ids[:, step + 1 : step + 2]).isfinite().all():
                    raise SystemExit(f"{name} forbids an answer of {named}, at step {step}")
    return [*found.values()]


def main() -> None:
    parser = generation_parser(__doc__, count=64, batch_size=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", help="processors, separated by commas; none is always run")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--whole", action="store_true", help="processors of schemas, regular expressions and choices")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name in options.models.split(","):
        loaded = load(CaptureSettings(name, size=options.size, device=options.device, dtype=options.dtype))
        if options.whole:
            found[name] = [cost for whole, texts in WHOLES for cost in along(loaded.target, whole, texts, options)]
            print(f"### {name}\n\n{table(WHOLE_HEADINGS, map(WholeCost.row, found[name]), left=2)}\n")
            continue
        found[name] = measure(loaded, read_prompts(None, options.count).prompts, options)
        print(f"### {name}\n\n{cost_table(found[name])}\n")
        with contextlib.suppress(MissingExtraError):
            print(f"{coordinate_table(found[name])}\n")
    keep(options.output, {"environment": environment(loaded.target.device), "models": found})


def measure(loaded: LoadedModel, prompts: Sequence[Prompt], options: argparse.Namespace) -> list[Cost]:
    """No processor, and each that suits the tokenizer."""
    wanted = options.only.split(",") if options.only else list(OF_MOLECULES)
    size, rounds = options.batch_size, options.rounds
    made: dict[str, Any] = {"none": None}
    for name in wanted:
        if name == "none":
            continue
        try:
            made[name] = make_processor(name, loaded.target)
        except MolprofError as problem:  # not for this tokenizer, or not installed
            progress(f"{name}: {problem}; left out")
            continue
        warm = runner(loaded, made[name], batch_size=size, max_new_tokens=WARM_STEPS)
        warm.run(warm.plan(prompts[:size]), None)
    passes: dict[str, list[Round]] = {name: [] for name in made}
    runs: dict[str, list[SequenceRun]] = {}
    for number in range(rounds):
        for name, processor in made.items():
            progress(f"{loaded.name} {name}, round {number + 1} of {rounds}")
            figures, runs[name] = one_pass(loaded, processor, prompts, options)
            passes[name].append(figures)
    return [Cost(name, passes[name], done) for name, done in runs.items()]


def one_pass(
    loaded: LoadedModel, processor: Any, prompts: Sequence[Prompt], options: argparse.Namespace
) -> tuple[Round, list[SequenceRun]]:
    """Time one pass: its figures, and its molecules."""
    used = runner(loaded, processor, batch_size=options.batch_size, max_new_tokens=options.max_new_tokens)
    plans = used.plan(prompts)

    def synchronized() -> int:
        used.synchronize()
        return time.perf_counter_ns()

    clock = synchronized if loaded.on_gpu else time.process_time_ns
    marks = Clock(now=clock)
    began = clock()
    done = used.run(plans, marks)
    figures = Round(
        time_ns=clock() - began,
        phases_ns=marks.phases_ns(),
        batches=len(done.batches),
        steps=sum(batch.steps for batch in done.batches),
        row_steps=sum(batch.steps * len(batch.rows) for batch in done.batches),
    )
    return figures, sequence_runs(used, plans, done)[0]


def cost_table(costs: Sequence[Cost]) -> str:
    return table(HEADINGS, [_row(cost, costs[0]) for cost in costs])


def coordinate_table(costs: Sequence[Cost]) -> str:
    """Bond lengths in each processor's texts against those of ETKDG conformers. Needs RDKit, and built-in molecules."""
    require_rdkit("the table of coordinates")
    references = dict(reference_conformers())
    rows = []
    for cost in costs:
        pairs = [(str(run.smiles), read_positions(run.text)) for run in cost.runs]
        errors = [error for smiles, found in pairs for error in bond_errors(smiles, found, references[smiles])]
        measured = [error for error in errors if error is not None]
        median = f"{statistics.median(measured):.3f}" if measured else "-"
        rows.append((cost.name, percent_text(len(measured) / len(errors)), median))
    return table(("processor", "bonds that can be measured", "median error, Å"), rows)


def _row(cost: Cost, base: Cost) -> tuple[str, ...]:
    def ratio(figure: Callable[[Round], float]) -> str:
        pairs = zip(cost.rounds, base.rounds, strict=True)
        return factor_text(statistics.median(figure(own) / figure(other) for own, other in pairs))

    def middle(figure: Callable[[Round], float]) -> float:
        return statistics.median(map(figure, cost.rounds))

    spent = ("-",) * 3
    if cost is not base:
        spent = (
            percent_text(middle(lambda item: item.processor_ratio)),
            time_text(middle(lambda item: item.phases_ns["processor"] / item.row_steps)),
            time_text(middle(lambda item: item.phases_ns["template"]) / len(cost.runs)),
        )
    kinds = Counter("".join(run.kinds for run in cost.runs))
    valid = [run.valid for run in cost.runs if run.valid is not None]
    return (
        cost.name,
        ratio(lambda item: item.time_ns),
        ratio(lambda item: item.forward_ns),
        *spent,
        count_text(kinds.total()),
        *(count_text(kinds[letter]) for letter in "jl"),
        count_text(sum(run.malformed_blocks for run in cost.runs)),
        f"{sum(valid)} of {len(valid)}",
    )


if __name__ == "__main__":
    main()
