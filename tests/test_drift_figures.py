"""Junk is counted by each rule, with examples; figures of disagreement are right."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiny_trace
from tiny import ids, table
from token_tracks import Token, sequence

from molprof.analysis.facts.tables import install
from molprof.analysis.figures.drift import (
    EXAMPLES,
    RULES,
    STATES,
    Agreement,
    Drift,
    DriftBlock,
    JunkExample,
    agreement,
    disagreement_figures,
    drift_figures,
    read_drift,
    text_kinds,
)
from molprof.analysis.figures.drift import Token as Examined
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import open_engine
from molprof.common.manifest import KIND_LETTERS
from molprof.common.text_format import DEFAULT
from molprof.profiler.molecules.kinds import classify

# Junk that a model really wrote, and blocks of other kinds.
REAL = (
    "<5.799,-0.2748,-0.9587abra>",
    "<3.669,-3.1469,0.1561chedulers>",
    "<3.601,0.363,0.3325 （C>",
    "<1.026,0.6438,-0.4296[c>",
    "<2.377,1.177,0.21467]>",
)
OTHERS = ("<1.0,2.0,3.0>", "<1.0,2.0>", "<1.0,2.0,3.0000001>", "<1,2,3>", "<1.0,2.0,3.0.5>", "<1.0,2.0,3.0,4.0>")


def rules(text: str, junk: int = 0, filler: int = 0) -> list[str]:
    block = DriftBlock(0, 0, text, junk, filler, None, None, None, "", "")
    return [name for name, (_, counts) in RULES.items() if counts(block, DEFAULT)]


@pytest.mark.parametrize(
    ("text", "junk", "filler", "counted"),
    [
        ("1.0,2.0,3.0", 0, 0, []),
        ("1.0,2.0,3.0abra", 1, 0, "drift strict surplus letters latin_letters any_nonnumeric not_floats not_exact"),
        ("1.0,2.0,3.0 （", 1, 0, "drift strict surplus any_nonnumeric not_floats not_exact"),
        ("1.0,2.0,3.0é", 1, 0, "drift strict surplus letters any_nonnumeric not_floats not_exact"),
        ("1.0,2.0,3.0.5", 2, 0, "drift strict surplus not_floats not_exact"),
        ("1.0,2.0,3.0,4", 2, 0, "drift strict surplus not_two_commas not_floats not_exact"),
        ("1.0,2.0,3.00000", 0, 1, "drift surplus"),
        ("1.0,2.0", 0, 0, "drift not_two_commas not_floats malformed not_exact"),
        ("1,2,3", 0, 0, "drift malformed not_exact"),
        ("1.0,nan,3.0", 0, 0, "drift letters latin_letters any_nonnumeric malformed not_exact"),
        ("", 0, 0, "drift not_two_commas not_floats malformed not_exact"),
    ],
)
def test_what_each_rule_counts(text: str, junk: int, filler: int, counted: str | list[str]) -> None:
    assert rules(text, junk, filler) == (counted.split() if isinstance(counted, str) else counted)


def tokens(text: str) -> list[Token]:
    """A text as Qwen's tokenizer splits it and molprof classifies it."""
    split = ids("qwen", text)
    found = classify(split, table("qwen"), frozenset())
    names = {letter: name for name, letter in KIND_LETTERS.items()}
    words = [table("qwen").join([token]) for token in split]
    return list(zip(words, [names[letter] for letter in found.kinds], found.blocks, strict=True))


def drift(folder: Path, *texts: str) -> Drift:
    """The figures of sequences with these texts, through the trace and SQL."""
    events = [sequence(place, tokens(text)) for place, text in enumerate(texts)]
    with open_engine() as engine:
        load_trace(tiny_trace.write(folder / "events.json", {"traceEvents": events}), engine)
        install(engine)
        return read_drift(engine, ())


def test_real_junk_by_every_rule(tmp_path: Path) -> None:
    found = drift(tmp_path, "".join(f"[C]{text}" for text in REAL), "".join(f"[N]{text}" for text in OTHERS))
    assert {rule.rule: (rule.blocks, rule.molecules) for rule in found.junk_rules} == {
        "drift": (10, 2),
        "strict": (7, 2),
        "surplus": (8, 2),
        "letters": (4, 1),
        "latin_letters": (4, 1),
        "any_nonnumeric": (5, 1),
        "not_two_commas": (2, 1),
        "not_floats": (8, 2),
        "malformed": (2, 1),
        "not_exact": (9, 2),
    }
    assert [rule.block_ratio for rule in found.junk_rules][:4] == [10 / 11, 7 / 11, 8 / 11, 4 / 11]
    assert [rule.molecule_ratio for rule in found.junk_rules][3] == 0.5
    assert found.states == {"junk": 7, "cut": 0, "malformed": 2, "filler": 1, "good": 1}
    assert found.drift_blocks == 10
    assert [item.text for item in found.junk_examples] == [
        "<5.799,-0.2748,-0.9587|abra|>",
        "<3.669,-3.1469,0.1561|chedulers|>",
        "<3.601,0.363,0.3325| （C|>",
        "<1.026,0.6438,-0.4296|[c|>",
        "<2.377,1.177,0.2146|7]|>",
        "<1.0,2.0,3.0|.5|>",
        "<1.0,2.0,3.0|,4.0|>",
    ]
    first, last = found.junk_examples[0], found.junk_examples[-1]
    split = tokens("[C]" + REAL[0])
    assert first == JunkExample(0, 0, [kind for _, kind, _ in split].index("junk"), first.text, "abra", 1)
    assert (last.sequence, last.block) == (1, 5)
    assert (found.known_blocks, found.mean_drift_tokens, found.mean_needed_tokens) == (0, None, None)


def block(place: int, surplus: str, drift: int | None = None, needed: int | None = None) -> DriftBlock:
    return DriftBlock(
        0, place, "x", 1 if surplus else 0, 0, needed, drift, 9 if surplus else None, f"<|{surplus}|>", surplus
    )


def test_signed_drift_counts_what_is_known() -> None:
    found = drift_figures([block(0, "", -2, 16), block(1, "", 0, 14), block(2, "", 3, 11), block(3, "", None, None)])
    assert (found.known_blocks, found.too_short_blocks, found.exact_blocks, found.too_long_blocks) == (3, 1, 1, 1)
    assert found.mean_drift_tokens == pytest.approx(1 / 3)
    assert found.mean_needed_tokens == pytest.approx(41 / 3)
    assert drift_figures([]) == Drift(0, 0, 0, 0, None, None, (), (), dict.fromkeys(STATES, 0))


@pytest.mark.parametrize(
    ("text", "junk", "filler", "cut", "state"),
    [
        ("1.0,2.0,3.0", 0, 0, False, "good"),
        ("1.0,2.0,3.00000", 0, 1, False, "filler"),
        ("1.0,2.0,3.00000abra", 1, 1, False, "junk"),
        ("1.0,2.0,3.0abra", 1, 0, True, "junk"),
        ("1.0,2.0,3.", 0, 0, True, "cut"),
        ("1.0,2.0,3.5", 0, 0, True, "cut"),
        ("1.0,2.0,3.", 0, 0, False, "malformed"),
        ("", 0, 0, False, "malformed"),
        ("chedulers garbage", 0, 0, False, "malformed"),
    ],
)
def test_what_a_block_is(text: str, junk: int, filler: int, cut: bool, state: str) -> None:
    found = DriftBlock(0, 0, text, junk, filler, None, None, None, "", "", cut)
    assert found.state(DEFAULT) == state
    assert drift_figures([found]).drift_blocks == (state != "good")


def test_a_block_is_cut_where_the_answer_ends_in_it(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["molecules"][0]["text"] = "[C]<1.0,2.0,3.0"
    for event in content["traceEvents"]:
        if event["name"] in ("sequence 0: C", "abra"):
            args = event["args"]
            args.update(kind="free" if isinstance(args["kind"], str) else ["copy", "free", "free"])
    content["molprof"]["molecules"][0]["kinds"] = "cff"
    run = tiny_trace.report(tmp_path / "cut.json", content).run
    assert run is not None
    assert run.drift is not None
    assert run.drift.states == {"junk": 0, "cut": 1, "malformed": 0, "filler": 0, "good": 0}


def test_examples_are_the_most_frequent_junk_each_once() -> None:
    texts = [f"junk{place}" for place in range(12)] + ["b", "b", "a", "a", "a"]
    found = drift_figures([block(place, text) for place, text in enumerate(texts)]).junk_examples
    assert [(item.surplus, item.blocks, item.block) for item in found] == [
        ("a", 3, 14),
        ("b", 2, 12),
        *((f"junk{place}", 1, place) for place in range(EXAMPLES - 2)),
    ]


def test_kinds_of_text() -> None:
    words = "[CONFORMER] [ C @@ H ]< - 1 .5 ,- 3 abra >[ O - ] 1 %10 =[ Cl ]( [C ]< 2 ]x )> /[ F ]< 1 > [/ CONFORMER ]"
    assert " ".join(text_kinds(words.split())) == (
        "tag bracket element element element bracket mark digit digit mark digit other close element element bracket"
        " ring ring bond element ring element bracket digit other close bond element bracket digit close tag tag tag"
    )
    assert text_kinds(["<|im_start|>", "[C]", ""]) == ["tag", "element", "other"]


def examined(sequence: int, position: int, text: str, probability: float, rank: int = 0, **changes: object) -> Examined:
    values = {"kind": "copy", "choice": "copy", "forbidden": 0, **changes}
    return Examined(sequence, position, text, probability=probability, rank=rank, **values)  # type: ignore[arg-type]


def test_agreement() -> None:
    found = agreement([examined(0, 0, "x", 1.0), examined(0, 1, "x", 0.25, 3, forbidden=1)])
    assert found == Agreement(2, 0.625, 0.625, 0.5, 0.5, 1.0)
    two = [examined(0, 0, "x", 1.0, removed=0.0, unlike=1), examined(0, 1, "x", 1.0, removed=0.5, unlike=0)]
    assert (agreement(two).mean_removed, agreement(two).unlike_ratio) == (0.25, 0.5)
    assert agreement([examined(0, 0, "x", 0.0)]).mean_surprisal_bits == 1074
    assert math.copysign(1, agreement([examined(0, 0, "x", 1.0)]).mean_surprisal_bits) == 1


def test_disagreement_figures() -> None:
    free = {"kind": "free", "choice": "free"}
    tokens = [
        examined(0, 0, "[C]<", 1.0),
        examined(0, 1, "5", 0.5, 1, **free),
        examined(0, 2, ">", 2**-20, 9, forbidden=1),
        examined(0, 3, "</s>", 1.0, kind="eos"),
        examined(2, 0, "[N]<", 1.0),
        examined(2, 1, ",", 0.125, 2, **free),
    ]
    found = disagreement_figures(tokens)
    assert found is not None
    assert (found.molecules, found.all.tokens) == (2, 6)
    assert [(item.choice, item.text, item.agreement.tokens) for item in found.groups] == [
        ("copy", None, 4),
        ("copy", "tag", 1),
        ("copy", "close", 1),
        ("copy", "element", 2),
        ("free", None, 2),
        ("free", "digit", 1),
        ("free", "mark", 1),
    ]
    assert found.groups[4].agreement == Agreement(2, 0.3125, 0.3125, 0.0, 0.0, 2.0)
    # A quarter of four tokens, a half of two.
    assert [(item.from_ratio, item.to_ratio, item.agreement.tokens) for item in found.bins] == [
        (0.0, 0.05, 2),
        (0.25, 0.3, 1),
        (0.5, 0.55, 2),
        (0.75, 0.8, 1),
    ]
    assert [(item.before, item.text, item.after, item.rank, item.forbidden) for item in found.worst[:2]] == [
        ("[C]<5", ">", "</s>", 9, True),
        ("[N]<", ",", "", 2, False),
    ]
    assert disagreement_figures([]) is None


def test_disagreement_of_plain_text_names_no_part_of_a_molecule() -> None:
    words = ['{"', "C", "=[", "12", ".5", "�", "</s>"]
    tokens = [examined(0, place, word, 0.5) for place, word in enumerate((*words[:-1], " \u240a", ""))]
    tokens.append(examined(0, len(tokens), words[-1], 1.0, kind="eos"))
    found = disagreement_figures(tokens, None)
    assert found is not None
    assert {item.text: item.agreement.tokens for item in found.groups} == {
        None: 9, "word": 2, "digit": 2, "sign": 2, "space": 2, "end": 1,
    }  # fmt: skip
