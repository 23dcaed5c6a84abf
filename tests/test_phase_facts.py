"""Facts about transformers' loops, logits processors and tokens equal the plain reference, on random input too."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import numpy as np
import plain_phases as plain
import pytest
from certificate_data import CORPUS, needs_traces
from hypothesis import strategies as st
from plain_phases import Function, Mark, Moment
from plain_tables import ask
from test_facts import RUNS
from test_queries import events_of, read_cases
from tiny_trace import slice_, write

from molprof.analysis.facts import loops
from molprof.analysis.facts.gaps import NONE
from molprof.analysis.facts.intervals import begins_inside, ends_before, last_begun
from molprof.analysis.facts.phases import equal_spans
from molprof.analysis.facts.processors import single_processors
from molprof.analysis.facts.tables import install
from molprof.analysis.facts.tokens import TokenText, block_texts, junk_runs
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine

TESTS = Path(__file__).parent
few = hypothesis.settings(max_examples=200, deadline=None)
INTERVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 6), st.booleans()).map(
        lambda row: (row[0], row[1], row[1] + row[2], row[3])
    ),
    max_size=12,
).map(lambda rows: sorted(rows, key=lambda row: row[:2]))
GENERATE = [("generate", name) for name in ("prepare", "forward", "sampling", "bookkeeping", "draft", "setup")]
GENERATE += [("generate", "generate"), ("model", "processor"), ("model", "forward"), ("xgrammar", "mask_apply")]
CONTINUOUS = [
    ("continuous", name)
    for name in ("prepare", "schedule", "forward", "processor", "sampling", "output", "bookkeeping")
]
CONTINUOUS += [("continuous", "output_per_request")]
MODEL = [("model", "forward"), ("model", "processor"), ("xgrammar", "mask_fill_per_request")]
ROW = st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 2), st.integers(0, 6), st.booleans())


@st.composite
def some_marks(draw: st.DrawFn) -> list[Mark]:
    """Marks of a loop, one behind the other or inside each other, on two threads."""
    kinds = draw(
        st.sampled_from(
            [GENERATE, GENERATE, CONTINUOUS, GENERATE + CONTINUOUS, MODEL, [*MODEL, ("training", "backward")]]
        )
    )
    models = draw(st.sampled_from(["a", "ab"]))
    found, cursor = [], [0, 0]
    if kinds[:1] == GENERATE[:1] and draw(st.booleans()):
        found.append(Mark(0, 0, 0, draw(st.integers(10, 90)), "generate", "generate"))
    for number, (thread, kind, gap, length, is_around) in enumerate(draw(st.lists(ROW, max_size=30)), 1):
        part, phase = kinds[kind % len(kinds)]
        ts = cursor[thread] + gap
        found.append(Mark(number, thread, ts, ts + length, part, phase, models[kind % len(models)]))
        cursor[thread] = ts if is_around else ts + length
    # Slices are numbered in order of their start, the outer one first.
    found.sort(key=lambda mark: (mark.ts, -mark.end))
    return [mark._replace(id=number) for number, mark in enumerate(found)]


def columns(rows: list[Any], width: int) -> list[np.ndarray]:
    return list(np.array(rows, dtype=np.int64).reshape(-1, width).T)


def arrays(marks: list[Mark]) -> loops.PhaseMarks:
    ordered = plain.in_order(marks)
    texts = (np.array([mark[place] for mark in ordered] + [None], dtype=object)[:-1] for place in (4, 5, 6))
    return loops.PhaseMarks(*columns([mark[:4] for mark in ordered], 4), *texts)


def moments(rows: list[Moment]) -> loops.ThreadSlices:
    return loops.ThreadSlices(*columns([(*row, row.ts) for row in rows], 4))


def none(number: int) -> int | None:
    return None if number == NONE else number


def phase_rows(marks: loops.PhaseMarks, found: loops.LoopPhases) -> plain.Rows:
    rows = zip(*(column.tolist() for column in (marks.id[found.mark], found.ts, found.ts_end)), strict=True)
    places = zip(found.call.tolist(), found.step.tolist(), strict=True)
    return [(*row, *map(none, place)) for row, place in zip(rows, places, strict=True)]


def step_rows(marks: loops.PhaseMarks, found: loops.LoopSteps) -> plain.Rows:
    rows = (marks.id[found.mark], found.ts_end, found.call, found.step, found.is_prefill, found.outputs)
    return [
        (*row[:2], none(row[2]), none(row[3]), *row[4:])
        for row in zip(*(column.tolist() for column in rows), strict=True)
    ]


@few
@hypothesis.given(INTERVALS)
def test_intervals_that_begin_in_some_before_them(rows: list[tuple[int, int, int, bool]]) -> None:
    keys, starts, ends, some = columns(rows, 4)
    last, inside = ends_before(keys, starts, ends, some != 0), begins_inside(keys, starts, ends, some != 0)
    for place, (key, start, *_) in enumerate(rows):
        before = [other for other in range(place) if rows[other][0] == key and rows[other][3]]
        assert last[place] == max(before, key=lambda other: (rows[other][2], -other), default=NONE)
        assert inside[place] == any(start < rows[other][2] for other in before)


@few
@hypothesis.given(INTERVALS, INTERVALS)
def test_the_last_interval_that_began(rows: list[tuple[int, ...]], asked: list[tuple[int, ...]]) -> None:
    keys, starts, *_ = columns(rows, 4)
    other_keys, moments, *_ = columns(asked, 4)
    assert last_begun(keys, starts, other_keys, moments).tolist() == [
        max((place for place, row in enumerate(rows) if row[0] == key and row[1] <= moment), default=NONE)
        for key, moment, *_ in asked
    ]


@few
@hypothesis.given(some_marks())
def test_loops(marks: list[Mark]) -> None:
    outer = arrays(marks).some(loops.outermost(arrays(marks)))
    assert outer.id.tolist() == [mark.id for mark in plain.outermost(marks)]
    found = loops.loop_marks(outer)
    mine = plain.loop_marks(plain.outermost(marks))
    assert found.id.tolist() == [mark.id for mark in mine]
    calls = loops.find_calls(found)
    assert sorted(phase_rows(found, loops.loop_phases(found, calls))) == sorted(plain.phases(mine))
    rows = step_rows(found, loops.generate_steps(found, calls)) + step_rows(found, loops.other_steps(found))
    assert sorted(rows) == sorted(plain.steps(mine))


@few
@hypothesis.given(
    some_marks(), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 60)), max_size=30)
)
def test_choices_of_steps(marks: list[Mark], rows: list[tuple[int, int, int]]) -> None:
    kinds = [[Moment(number, *row[1:]) for number, row in enumerate(rows) if row[0] == kind] for kind in range(3)]
    mine = plain.loop_marks(plain.outermost(marks))
    found = arrays(mine)
    calls = loops.find_calls(found)
    phases = loops.loop_phases(found, calls)
    samplings = loops.find_samplings(found, phases, loops.generate_steps(found, calls))
    operators, criteria = moments(kinds[0] + kinds[1]), moments(kinds[2])
    is_topk = np.arange(len(operators.id)) >= len(kinds[0])
    chosen = loops.find_choices(samplings, operators, is_topk, criteria)
    shown = zip(*(getattr(chosen, name).tolist() for name in chosen.__struct_fields__), strict=True)
    assert sorted(shown) == sorted(plain.choices(mine, *kinds))


FUNCTIONS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 9), st.booleans(), st.booleans()), max_size=12
).map(lambda rows: [Function(20 + n, on, ts, ts + dur, *flags) for n, (on, ts, dur, *flags) in enumerate(rows)])


@few
@hypothesis.given(FUNCTIONS, FUNCTIONS)
def test_single_processors(some: list[Function], functions: list[Function]) -> None:
    """The phases of a list are marked by a function, those of an annotation by none."""
    phases = [(*one[:4], True) for one in functions[:3]]
    phases += [(one.id - 20, *one[1:4], False) for one in some[:3]]
    phases.sort(key=lambda one: one[0])
    *times, is_list = columns(phases, 5)
    *calls, in_list_file, is_wrapper = columns(functions, 6)
    found = single_processors(
        loops.ThreadSlices(*times), is_list != 0, loops.ThreadSlices(*calls), in_list_file != 0, is_wrapper != 0
    )
    assert found.tolist() == plain.single_processors(phases, functions)


@few
@hypothesis.given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["decode", "prefill", None])), max_size=12))
def test_spans_of_steps_that_are_alike(rows: list[tuple[int, str | None]]) -> None:
    rows.sort(key=lambda row: row[0])
    expected: list[tuple[int, int]] = []
    for _, some in groupby(rows, lambda row: row[0]):
        last = None
        for _, shape in some:
            number, position = expected[-1] if expected else (0, -1)
            expected.append((number, position + 1) if shape == last else (number + 1, 0))
            last = shape
    found = equal_spans(np.array([row[0] for row in rows], dtype=np.int64), [row[1] for row in rows], None)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


TOKENS = st.lists(
    st.tuples(st.integers(-1, 3), st.sampled_from(["free", "copy", "junk", "filler"]), st.text("<>[1/a", max_size=4)),
    max_size=14,
).map(lambda rows: [TokenText(number, *row) for number, row in enumerate(rows)])


@few
@hypothesis.given(TOKENS, st.sampled_from([("<", ">"), ("[<", ">/"), ("<1>", "</a>")]))
def test_texts_of_blocks(tokens: list[TokenText], brackets: tuple[str, str]) -> None:
    opens, closes = brackets
    first, last, end = (re.escape(mark) for mark in (opens[0], opens[-1], closes[0]))
    outside = TokenText(-1, -1, "", "")
    expected: dict[int, list[str]] = {}
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else outside
        after = tokens[place + 1] if place + 1 < len(tokens) else outside
        texts = expected.setdefault(token.block, ["", "", ""])
        head = re.search(f"[^{last}]*$", before.text)[0] if before.block != token.block else ""  # type: ignore[index]
        tail = re.match(f"[^{first}{end}]*(?={end})", after.text) if after.block != token.block else None
        text = re.split(end, token.text)[0]
        is_surplus = [one.kind in ("junk", "filler") and one.block == token.block for one in (before, token, after)]
        bars = ["|" if is_surplus[1] and not is_surplus[side] else "" for side in (0, 2)]
        texts[0] += head + text + (tail[0] if tail else "")
        texts[1] += head + bars[0] + text + bars[1] + (tail[0] if tail else "")
        texts[2] += text if is_surplus[1] else ""
    expected.pop(-1, None)
    assert {block: list(texts) for block, texts in block_texts(tokens, opens, closes).items()} == expected


@few
@hypothesis.given(TOKENS)
def test_runs_of_junk(tokens: list[TokenText]) -> None:
    kept = [token for token in tokens if token.text != "a"]  # of some the text is not recorded
    is_junk = {token.position for token in kept if token.kind == "junk" and token.block == -1}
    starts = sorted(one for one in is_junk if one - 1 not in is_junk)
    assert [[token.position for token in run] for run in junk_runs(kept)] == [
        list(range(start, min(one for one in range(start, 99) if one not in is_junk))) for start in starts
    ]


_MARKS = """
SELECT id, upid, tid, ts, ts + dur, program, part, phase, name,
  name GLOB '*transformers/generation/logits_process.py(*', name GLOB '*/cb_logits_processors.py(*'
FROM molprof_phase_slice
ORDER BY id
"""
_PHASES = "SELECT id, upid, tid, ts, ts + dur, program, phase, batch FROM molprof_phase ORDER BY id"
_CHOOSING = """
SELECT slice.id, upid, tid, ts, name = 'aten::topk'
FROM slice
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
WHERE category = 'cpu_op' AND name IN ('aten::argmax', 'aten::multinomial', 'aten::topk')
"""
_STEPS = """
SELECT id, upid, tid, ts, ts + dur, kind, prompt_sequences + generating_sequences
FROM molprof_any_step
ORDER BY upid, ts, id
"""


def expected_tables(engine: TraceProcessor) -> dict[str, plain.Rows]:
    """The rows of tables of facts, as plain loops find them in what SQL shows."""
    rows, phases = ask(engine, _MARKS, "phase_slices"), ask(engine, _PHASES, "phases")
    steps, choosing = ask(engine, _STEPS, "steps"), ask(engine, _CHOOSING, "annotations")
    threads = {place: number for number, place in enumerate({row[1:3] for row in [*rows, *phases, *steps, *choosing]})}
    is_captured = ask(engine, "SELECT 1 FROM molprof_annotation WHERE role = 'phase' LIMIT 1", "annotations")
    marks = [(row[5], Mark(row[0], threads[row[1:3]], *row[3:5], *row[6:9])) for row in rows]
    loop = [] if is_captured else [mark for program, mark in marks if program == "transformers"]
    mine = plain.loop_marks(plain.outermost(loop))
    by_id = {mark.id: mark for mark in mine}
    criteria = [mark for mark in loop if mark.phase in (None, "sampling")]
    kinds = [[Moment(row[0], threads[row[1:3]], row[3]) for row in choosing if row[4] == kind] for kind in (0, 1)]
    lists = [
        (row[0], threads[row[1:3]], *row[3:5], row[5] == "transformers" and row[7] is not None)
        for row in phases
        if row[6] == "processor"
    ]
    functions = [
        Function(row[0], threads[row[1:3]], *row[3:5], bool(row[9]), bool(row[10]))
        for row in rows
        if row[7] in (None, "processor")
    ]
    inner = {
        mark.id
        for mark in plain.outermost(mark for program, mark in marks if is_captured and program != "transformers")
        if str(mark.phase).startswith(("mask_", "grammar_"))
    }
    timed = [*phases, *((*row[:6], row[7], None) for row in rows if row[0] in inner)]
    in_steps = []
    for row in timed:
        begun = [step for step in steps if step[1] == row[1] and step[3] <= row[3]]
        if begun and row[3] < begun[-1][4]:
            in_steps.append((row[0], begun[-1][0], row[6]))
    is_marked = any(row[6] == "mask_fill_per_request" for row in timed)
    masks = [
        sum(place[1:] == (step[0], "mask_fill_per_request") for place in in_steps) if is_marked else None
        for step in steps
    ]
    following = [
        (step[0], min(other[3::-3] for other in steps[place + 1 :] if other[1:3] == step[1:3])[0] - step[3])
        for place, step in enumerate(steps)
        if any(other[1:3] == step[1:3] for other in steps[place + 1 :])
    ]
    engine = plain.outermost(mark for program, mark in marks if program != "transformers")
    return {
        "engine_phase": [
            (mark.id,)
            for place, mark in enumerate(engine)
            if mark.phase != "forward"
            or not plain.begins_inside(mark, (one for one in engine[:place] if one.phase == "draft"))
        ],
        "loop_phase": [(row[0], row[1], row[2] - row[1], *row[3:]) for row in plain.phases(mine)],
        "loop_step": [(row[0], row[1] - by_id[row[0]].ts, by_id[row[0]].part, *row[2:]) for row in plain.steps(mine)],
        "step_choice": plain.choices(mine, *kinds, [Moment(mark.id, mark.thread, mark.ts) for mark in criteria]),
        "single_processor": [(number,) for number in plain.single_processors(lists, functions)],
        "phase_step": [row[:2] for row in in_steps],
        "mask_step": [(step[0], number) for step, number in zip(steps, masks, strict=True)],
        "step_period": following,
    }


def check(engine: TraceProcessor) -> dict[str, int]:
    """Compare the tables of facts; return how many rows each has."""
    found = {}
    for name, rows in expected_tables(engine).items():
        wanted = "step_id, masks" if name == "mask_step" else "*"
        shown = ask(engine, f"SELECT {wanted} FROM _molprof_fact_{name}")
        assert sorted(shown, key=repr) == sorted(rows, key=repr), name
        found[name] = len(rows)
    return found


CASES = [case for name in ("engines", "phases", "steps") for case in read_cases(TESTS / "sql" / f"{name}.txt")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: re.sub(r"\W+", "-", case.head[0])[2:50])
def test_facts_of_cases(case: Any, tmp_path: Path, engine: TraceProcessor) -> None:
    events = [event for line in case.head for event in events_of(line)]
    load_trace(write(tmp_path / "a.json", {"traceEvents": events}), engine, all_args=True)
    install(engine)
    check(engine)


def test_facts_of_calls_of_generate() -> None:
    """Recorded with transformers 5.23 and reduced to what marks phases: an assistant, a prompt in chunks, beams."""
    with open_trace(TESTS / "cases" / "generate.json", all_args=True, stacks=True) as (engine, _):
        rows = check(engine)
        assert min(rows[name] for name in ("loop_phase", "loop_step", "step_choice", "single_processor")) > 0
        shown = ask(
            engine, "SELECT call, COUNT(), SUM(tokens) FROM molprof_generate_step GROUP BY 1", "generate_phases"
        )
        assert shown == [(0, 5, None), (1, 6, 2), (2, 6, None)]


TRACES = sorted(Path(CORPUS).glob("engines/*.json.gz")) if CORPUS else []
TRACES += sorted(TESTS.parent.glob("traces/cpu-*-generic.json.gz"))


@needs_traces
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split(".")[0])
def test_facts_of_recorded_runs(path: Path) -> None:
    with open_trace(path, all_args=True, stacks=True) as (engine, _):
        check(engine)


NAMES = {
    ("generate", "generate"): "transformers/generation/utils.py(1): generate",
    ("generate", "setup"): "transformers/generation/utils.py(2): _get_logits_processor",
    ("generate", "draft"): "transformers/generation/candidate_generator.py(3): get_candidates",
    ("generate", "prepare"): "transformers/generation/utils.py(4): prepare_inputs_for_generation",
    ("generate", "sampling"): "transformers/generation/stopping_criteria.py(5): __call__",
    ("generate", "bookkeeping"): "transformers/generation/utils.py(6): _has_unfinished_sequences",
    ("generate", "forward"): "transformers/generation/utils.py(7): _update_model_kwargs_for_generation",
    ("model", "processor"): "transformers/generation/logits_process.py(8): __call__",
    ("model", "forward"): "nn.Module: LlamaForCausalLM_0",
    ("xgrammar", "mask_apply"): "xgrammar/matcher.py(9): apply_token_bitmask_inplace",
    ("xgrammar", "mask_fill_per_request"): "xgrammar/matcher.py(10): fill_next_token_bitmask",
}


@hypothesis.settings(max_examples=RUNS, deadline=None)
@hypothesis.given(
    some_marks(),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.sampled_from(["argmax", "multinomial", "topk"]))),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(1, 6)), max_size=9),
)
def test_facts_of_random_traces(
    marks: list[Mark], operators: list[tuple[int, int, str]], functions: list[tuple[int, int, int]]
) -> None:
    events = []
    for mark in marks:
        name = NAMES.get((mark.part, mark.phase or ""), "mine.py(11): __call__")
        events.append(slice_("python_function", name, mark.ts, mark.end - mark.ts, 100, 100 + mark.thread))
    for thread, ts, length in functions:
        events.append(slice_("python_function", f"mine.py({length}): __call__", ts, length, 100, 100 + thread))
    for thread, ts, name in operators:
        events.append(slice_("cpu_op", f"aten::{name}", ts, 1, 100, 100 + thread))
    with TemporaryDirectory() as folder, open_engine() as engine:
        load_trace(write(Path(folder, "random.json"), {"traceEvents": events}), engine)
        install(engine)
        check(engine)
