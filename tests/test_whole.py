"""`table` allows exactly the texts of a regular expression, a JSON schema or choices, in any tokens."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from constrained import WIDTHS, answers, places, target

from molprof.profiler.capture.answers import json_value
from molprof.profiler.constraints.automaton import Automaton, NoText, TooLarge, determinize
from molprof.profiler.constraints.constraint import make_table
from molprof.profiler.constraints.json_schema import compiled, schema_part
from molprof.profiler.constraints.regular import NotRegular, regular
from molprof.profiler.constraints.token_dfa import TokenDfaBatch
from molprof.profiler.molecules.prompts import Constraint

RUNS = int(os.environ.get("MOLPROF_FUZZ_RUNS", "60"))
ALPHABET = "ab0-é\n٣"


def written(automaton: Automaton, rng: random.Random, most: int = 40) -> str | None:
    """A text of an automaton; None where the way taken has no end so soon."""
    state, text = 0, bytearray()
    while not (automaton.ends[state] and rng.random() < 0.3):
        ways = [kind for kind, to in enumerate(automaton.moves[state]) if to >= 0]
        if not ways or len(text) > most:
            return text.decode() if automaton.ends[state] else None
        kind = rng.choice(ways)
        text.append(rng.choice([byte for byte in range(256) if automaton.kinds[byte] == kind]))
        state = automaton.moves[state, kind]
    return text.decode()


def pattern(rng: random.Random, depth: int = 3) -> str:
    kind = rng.randrange(9 if depth else 4)
    if kind < 2:
        return rng.choice(("a", "b", "0", "-", "é", r"\n", r"\.", "ab"))
    if kind < 4:
        return rng.choice(
            (".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "[ab]", "[^a]", r"[\w-]", r"[^\s0]", "[a-é]", "[^-b]")
        )
    inside = pattern(rng, depth - 1)
    if kind < 6:
        return inside + pattern(rng, depth - 1)
    if kind == 6:
        return f"({rng.choice(('', '?:'))}{inside}|{pattern(rng, depth - 1)})"
    how = rng.choice(("?", "*", "+", "{2}", "{0,2}", "{1,}", "{1,3}"))
    return f"(?:{inside}){how}{rng.choice(('', '?'))}"


def test_regular_expressions_allow_what_python_matches() -> None:
    rng = random.Random(1)
    texts = ["".join(item) for size in range(4) for item in itertools.product(ALPHABET, repeat=size)]
    for _ in range(RUNS):
        form = rng.choice(("", "^")) + pattern(rng) + rng.choice(("", "$"))
        form = rng.choice(("", "(?s)", "(?a)")) + form
        automaton, matches = determinize(regular(form)), re.compile(form).fullmatch
        own = [text for _ in range(20) if (text := written(automaton, rng)) is not None]
        changed = [
            text[:at] + rng.choice(ALPHABET) + text[at + 1 :] for text in own for at in [rng.randrange(len(text) + 1)]
        ]
        for text in (*rng.sample(texts, 150), *own, *changed):
            assert automaton.accepts(text) == (matches(text) is not None), (form, text)


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (r"(a)\1", r"it has a back reference, such as \1"),
        ("a(?=b)", "it has lookahead or lookbehind, such as (?=...)"),
        ("(?<!a)b", "it has lookahead or lookbehind, such as (?!...)"),
        ("(a)?(?(1)b|c)", "it has a choice by a group, (?(1)...)"),
        ("(?i)a", "it ignores case, (?i)"),
        ("(?s:.)", "flags change inside of it, as by (?s:...)"),
        (r"a\bb", r"it has \b or \B"),
        ("a$b", "it has ^ or $ inside of it"),
    ],
)
def test_patterns_without_an_automaton(form: str, why: str) -> None:
    with pytest.raises(NotRegular) as found:
        regular(form)
    assert str(found.value) == why


@pytest.mark.parametrize(
    "form",
    [
        '{"type": 3}', '{"type": "number", "minimum": "a"}', '{"properties": [1]}', '{"properties": 1}',
        '{"allOf": true}', '{"enum": null}',
    ],
)  # fmt: skip
def test_what_is_no_schema_has_no_automaton(form: str) -> None:
    with pytest.raises(NotRegular, match="it has a keyword with a value of another type than it takes"):
        compiled(Constraint("schema", form))


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    kind = rng.choice(
        ("string", "integer", "number", "boolean", "null", "enum", *("object", "array", "anyOf", "oneOf") * bool(depth))
    )
    low, high = sorted(rng.sample(range(-120, 1200), 2))
    if kind == "enum":
        return {"enum": rng.sample(["a", "é\n", 1, -2.5, True, None, [1, "b"], {"k": [], "é": 2}], 3)}
    if kind == "integer":
        bounds = {"minimum": low, "maximum": high, "exclusiveMinimum": low, "exclusiveMaximum": high + 2}
        return {"type": "integer", **{key: bounds[key] for key in bounds if rng.random() < 0.4}}
    if kind == "number":
        low, high = rng.choice(((0, 1), (-1, 1), (0, 0), (-3, 25), (7, 120), (-12, -3)))
        bounds = {"minimum": low, "maximum": high, "exclusiveMinimum": low, "exclusiveMaximum": high + 1}
        return {"type": "number", **{key: bounds[key] for key in bounds if rng.random() < 0.4}}
    if kind == "string":
        lengths = {"minLength": rng.randrange(3), "maxLength": rng.randrange(2, 6)}
        found = {"type": "string", **{key: lengths[key] for key in lengths if rng.random() < 0.6}}
        if rng.random() < 0.3:
            found["pattern"] = rng.choice(("^[ab]+$", "a", "^é|b$", r'["\\\n]', "^(a|bc)"))
        return found
    if kind == "array":
        sizes = {"minItems": rng.randrange(3), "maxItems": rng.randrange(1, 4)}
        found = {"type": "array", "items": schema(rng, depth - 1)}
        if rng.random() < 0.4:
            found["prefixItems"] = [schema(rng, 0) for _ in range(rng.randrange(1, 3))]
            found["items"] = rng.choice((False, found["items"]))
        return found | {key: sizes[key] for key in sizes if rng.random() < 0.6}
    if kind == "object":
        names = rng.sample(["a", "b", "é", 'q"', "long name"], rng.randrange(4))
        required = [name for name in names if rng.random() < 0.5]
        properties = {name: schema(rng, depth - 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind in ("boolean", "null"):
        return {"type": kind}
    return {kind: [schema(rng, depth - 1) for _ in range(2)]}


def value(rng: random.Random, described: Any, depth: int = 3) -> Any:
    """A value that may be of the schema, and often nearly is."""
    if not isinstance(described, dict) or rng.random() < 0.06 or not depth:
        return rng.choice([0, -7, 1200, 0.5, "a", "", 'é"\\\n', True, None, [], {}, ["a"], {"a": 1}, {"zz": 1}])
    for key in ("anyOf", "oneOf", "enum"):
        if key in described:
            found = rng.choice(described[key])
            return found if key == "enum" else value(rng, found, depth - 1)
    kind = described["type"]
    if kind == "integer":
        return rng.choice(
            [
                *(described[key] + rng.choice((-1, 0, 1)) for key in described if key != "type"),
                rng.randrange(-200, 1300),
            ]
        )
    if kind == "number":
        near = [described[key] + rng.choice((-0.125, 0, 0.5, 1)) for key in described if key != "type"]
        return rng.choice([*near, rng.randrange(-200, 1300) / 8])
    if kind == "string":
        return "".join(rng.choices('ab"c\\\né😀\x7f\x01', k=rng.randrange(7)))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        items = [value(rng, item, depth - 1) for item in described.get("prefixItems", ())]
        return [*items, *(value(rng, described["items"], depth - 1) for _ in range(rng.randrange(4)))][
            : rng.randrange(6)
        ]
    if kind == "object":
        found = {
            name: value(rng, item, depth - 1) for name, item in described["properties"].items() if rng.random() < 0.8
        }
        return found | ({"other": 1} if rng.random() < 0.05 else {})
    return None


def whole_numbers(item: Any) -> Any:
    """1 for 1.0, which is the same value."""
    if isinstance(item, list):
        return [*map(whole_numbers, item)]
    if isinstance(item, dict):
        return {key: whole_numbers(inner) for key, inner in item.items()}
    return int(item) if isinstance(item, float) and item == int(item) else item


def test_json_schemas_allow_the_values_that_are_valid() -> None:
    package = pytest.importorskip("jsonschema_rs")
    rng, refused, judged = random.Random(2), 0, [0, 0]
    for _ in range(RUNS):
        described = schema(rng)
        validator = package.validator_for(described)
        try:
            automaton = determinize(schema_part(json.dumps(described)))
        except NotRegular:  # oneOf of schemas that have values in common
            assert "oneOf" in json.dumps(described)
            refused += 1
            continue
        except NoText:
            automaton = None
        for _ in range(40):
            item = whole_numbers(value(rng, described))
            valid = validator.is_valid(item)
            judged[valid] += 1
            for separators in ((", ", ": "), (",", ":")):
                text = json.dumps(item, ensure_ascii=False, separators=separators)
                assert (automaton is not None and automaton.accepts(text)) == valid, (described, text)
            assert automaton is None or not automaton.accepts("-0") or "number" in json.dumps(described)
            if valid and isinstance(item, dict | list) and item:
                assert not automaton.accepts(json.dumps(item, ensure_ascii=False, indent=1))
        for _ in range(10 if automaton is not None else 0):
            if (text := written(automaton, rng, 80)) is not None:
                assert validator.is_valid(json_value(text)), (described, text)
    assert refused < RUNS / 4
    assert min(judged) > RUNS


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    Constraint("choices", "yes,no,maybé"),
    Constraint("regex", r"[A-Z][a-z]{1,6}( [A-Za-z]{1,4})?"),
    Constraint("regex", r"[^\n]{0,9}"),
    Constraint("schema", json.dumps(PERSON)),
]


def kept(constraint: Constraint) -> Callable[[str], bool]:
    """Whether a text is of a constraint, without a table."""
    if constraint.kind == "choices":
        return constraint.text.split(",").__contains__
    if constraint.kind == "regex":
        return lambda text: re.fullmatch(constraint.text, text) is not None
    return determinize(schema_part(constraint.text)).accepts


def test_rows_write_the_texts_of_their_own_constraints_in_any_tokens() -> None:
    """Scores of what may follow are kept; a row that ended has the end token alone."""
    rng, goal, width = random.Random(3), target("llama"), WIDTHS["llama"]
    tables = [make_table(goal, constraint) for constraint in CONSTRAINTS]
    batch, as_on_gpu = TokenDfaBatch(tables, goal, 3), TokenDfaBatch(tables, goal, 3, by_row=False)
    rows: list[list[int]] = [[] for _ in CONSTRAINTS]
    masked = [0] * len(CONSTRAINTS)
    while not all(goal.eos in row for row in rows):
        given = torch.rand(len(rows), width)
        found = batch(answers(*rows), given.clone())
        assert torch.equal(found, as_on_gpu(answers(*rows), given.clone()))
        for number, (row, scores) in enumerate(zip(rows, found, strict=True)):
            left = scores.isfinite()
            masked[number] += width - int(left.sum())
            assert torch.equal(scores[left], given[number][left])
            ids = left.nonzero().flatten().tolist()
            assert goal.eos not in row or ids == [goal.eos]
            token = rng.choice(ids)
            row.append(goal.eos if goal.eos in ids and (len(row) > 3 or rng.random() < 0.3) else token)
    assert batch.masked_logits == as_on_gpu.masked_logits == masked
    for constraint, row in zip(CONSTRAINTS, rows, strict=True):
        text = goal.table.join(row[: row.index(goal.eos)])
        assert kept(constraint)(text), text


def test_a_step_on_a_device_is_six_operators_that_depend_on_no_value() -> None:
    """Tracing with tensors without values would fail where one is read back, or decides a shape."""
    from torch.fx.experimental.proxy_tensor import make_fx

    goal = target("llama")
    batch = TokenDfaBatch([make_table(goal, constraint) for constraint in CONSTRAINTS], goal, 3, by_row=False)
    given = torch.zeros(len(CONSTRAINTS), 1, dtype=torch.int64), torch.zeros(len(CONSTRAINTS), WIDTHS["llama"])
    traced = make_fx(lambda *given: batch.step(*given), tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    calls = [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
    views = {"alias.default", "select.int", "slice.Tensor", "unsqueeze.default"}
    assert [name for name in calls if name not in views] == [
        "gather.default", "add_.Tensor", "index_select.out", "add.Tensor", "index.Tensor", "masked_fill_.Scalar",
    ]  # fmt: skip


def test_states_allow_what_the_batch_allows() -> None:
    """Of rows in any order, with tables of their own, that go back to another token."""
    rng, goal, width = random.Random(3), target("llama"), WIDTHS["llama"]
    tables = [make_table(goal, constraint) for constraint in (*CONSTRAINTS, CONSTRAINTS[0])]
    batch, plain = TokenDfaBatch(tables, goal, 3), TokenDfaBatch(tables, goal, 3)
    order = [*range(len(tables))][::-1]
    rows: list[list[int]] = [[] for _ in tables]
    for position in range(6):
        states = []
        for row in order:
            last = rows[row][-1] if position else None
            if position:  # drafted, and taken back
                batch.state(row, position, goal.eos)
                batch.state(row, position + 1, goal.eos)
            states.append(batch.state(row, position, last))
        found = batch.allow(torch.zeros(len(rows), width), torch.tensor(states, dtype=torch.int32)).isfinite()
        expected = plain(answers(*rows), torch.zeros(len(rows), width)).isfinite()
        assert torch.equal(found, expected[order])
        for row, left in zip(order, found, strict=True):
            rows[row].append(rng.choice(left.nonzero().flatten().tolist()))


def test_what_may_follow_is_what_the_characters_say() -> None:
    """Every token of a vocabulary, at some places of a text."""
    goal = target("qwen")
    table = make_table(goal, CONSTRAINTS[1])
    # An equal vocabulary has the same tables; its hash is reckoned once.
    again = dataclasses.replace(goal.table)
    assert make_table(dataclasses.replace(goal, table=again), CONSTRAINTS[1]) is table
    assert vars(again)["_hash"] == hash(goal.table)
    for begun in ("Ab", "Ab Cd"):
        state = table.first
        for token in goal.tokenizer(begun)["input_ids"]:
            state = int(table.moves[state, table.classes[token]])
        found = {token for token in range(goal.logits_width) if table.moves[state, table.classes[token]] >= 0} - {
            goal.eos
        }
        begins = re.compile(r"[A-Z]([a-z]{0,6}|[a-z]{1,6} [A-Za-z]{0,4})").fullmatch
        assert found == {
            token
            for token, piece in enumerate(goal.table.pieces)
            if piece and token not in goal.table.special and piece.isascii() and begins(begun + piece.decode())
        }


def test_forced_runs_go_on_while_one_token_may_follow() -> None:
    goal = target("qwen")
    (zero, one) = (goal.vocabulary[digit] for digit in "01")
    batch = TokenDfaBatch(
        [make_table(goal, Constraint("regex", "0(01|11)0")), make_table(goal, Constraint("choices", "1"))], goal, 3
    )
    assert batch.forced(0, 0, None) == [zero]
    # Where a run is written token by token, each is masked as a choice with one token left.
    left = [batch.mask(torch.zeros(1, goal.logits_width), places([0], [at])).isfinite().sum().item() for at in (0, 1)]
    assert left == [1, 2]
    assert batch.masked_logits == [2 * goal.logits_width - 3, 0]
    assert batch.forced(0, 2, one) == [one, zero, goal.eos]
    assert batch.forced(1, 0, None) == [one, goal.eos]


@pytest.mark.parametrize("constraint", CONSTRAINTS[:2])
def test_masks_are_those_of_xgrammar(constraint: Constraint) -> None:
    pytest.importorskip("xgrammar")
    from molprof.profiler.constraints.base import Rows
    from molprof.profiler.constraints.engines import XGrammar
    from molprof.profiler.molecules.prompts import Prompt

    rng, goal = random.Random(4), target("qwen")
    batches = [
        XGrammar(goal, constraint).start(Rows([Prompt(1, "", "", None)], 3)),
        TokenDfaBatch([make_table(goal, constraint)], goal, 3),
    ]
    row: list[int] = []
    while goal.eos not in row:
        theirs, ours = (batch(answers(row), torch.zeros(1, goal.logits_width))[0].isfinite() for batch in batches)
        assert torch.equal(theirs, ours)
        row.append(rng.choice(ours.nonzero().flatten().tolist()))


def test_what_does_not_fit_falls_back_by_name() -> None:
    pytest.importorskip("xgrammar")
    from molprof.profiler.constraints.constraint import table

    goal = target("llama")
    anything = Constraint("schema", json.dumps({"type": "object", "properties": {"a": True}}))
    made_instead = table(goal, anything)
    assert made_instead.name == "xgrammar"
    assert made_instead.parameters["instead_of"] == {"table": "it allows any value"}
    with pytest.raises(TooLarge, match="more than 200,000 states"):
        make_table(goal, Constraint("regex", r"\w{1,4000}"))
    with pytest.raises(TooLarge, match="the repetition number is too large"):
        make_table(goal, Constraint("regex", "a{99999999999}"))
    with pytest.raises(NotRegular, match="half of a surrogate pair"):
        make_table(goal, Constraint("choices", "a,\udcff"))
    with pytest.raises(TooLarge, match="too many parts in each other"):
        make_table(goal, Constraint("regex", f"{'(' * 900}a{')' * 900}"))


def test_requests_of_vllm_keep_to_their_own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the interface of its plugins, of which this stands in: rows are added, moved, swapped and removed."""
    direction = enum.Enum("MoveDirectionality", "UNIDIRECTIONAL SWAP")
    interface = SimpleNamespace(LogitsProcessor=object, MoveDirectionality=direction)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.logits_processor", interface)
    from molprof.profiler.constraints import vllm_plugin

    goal = target("llama")
    goal.tokenizer.save_pretrained(tmp_path)
    model = SimpleNamespace(tokenizer=str(tmp_path), trust_remote_code=False, get_vocab_size=lambda: goal.logits_width)
    config = SimpleNamespace(model_config=model)
    kind = vllm_plugin.TableLogitsProcessor
    both = [kind(config, torch.device("cpu"), False, by_row=by_row) for by_row in (None, False)]  # False: as on a GPU
    written: list[list[int]] = [[], [], []]

    def params(**given: Any) -> Any:
        return SimpleNamespace(extra_args=given or None)

    def update(added: Any = (), removed: Any = (), moved: Any = ()) -> None:
        for one in both:
            one.update_state(SimpleNamespace(added=added, removed=removed, moved=moved))

    def left() -> list[set[str]]:
        out, other = (made.apply(torch.zeros(3, goal.logits_width)) for made in both)
        assert torch.equal(out, other)
        ids = [row.isfinite().nonzero().flatten().tolist() for row in out]
        return [{goal.tokenizer.decode(token) for token in row} if len(row) < 9 else {"any"} for row in ids]

    asked = params(table_choices="0,1"), params(), params(table_regex="1[ab]")
    update([(row, item, None, written[row]) for row, item in enumerate(asked)])
    assert left() == [{"0", "1"}, {"any"}, {"1"}]
    written[0].append(goal.vocabulary["1"])
    written[2].append(goal.vocabulary["1"])
    assert left() == [{"<|end_of_text|>"}, {"any"}, {"a", "b"}]
    update(moved=[(0, 2, direction.SWAP)])
    assert left() == [{"a", "b"}, {"any"}, {"<|end_of_text|>"}]
    update(removed=[2], moved=[(0, 1, direction.UNIDIRECTIONAL)])
    assert left() == [{"any"}, {"a", "b"}, {"any"}]
    kind.validate_params(asked[0])
    kind.validate_params(params(temperature_of_another="1"))
    with pytest.raises(ValueError, match="the request has structured_outputs too"):
        kind.validate_params(SimpleNamespace(extra_args={"table_regex": "a"}, structured_outputs=object()))
    for given, why in (
        ({"table_regex": "a(?=b)"}, "it has lookahead"),
        ({"table_regex": "a", "table_choices": "b"}, "one text"),
        ({"tabel_regex": "a"}, "no 'tabel_regex', but table_schema"),
        ({"table_grammar": "a"}, "no 'table_grammar', but table_schema"),
        ({"table_regex": "("}, "unterminated"),
    ):
        with pytest.raises(ValueError, match=why):
            kind.validate_params(params(**given))
