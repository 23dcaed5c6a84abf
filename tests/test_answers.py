"""Answers to a user's prompts are judged right: JSON lines, schemas, checks, repetitive tokens; and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from captures import captured, settings
from page_data import render

from molprof import api
from molprof.analysis.documents.figures import figure_values
from molprof.analysis.documents.report import report_document
from molprof.analysis.render import render as render_document
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.answers import checks_of, cut_otherwise, led_nowhere, problem_of
from molprof.profiler.constraints import processor_of
from molprof.profiler.constraints.base import Rows
from molprof.profiler.molecules.prompts import Constraint, Prompt, read_texts, with_chats

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def one_brace(answer: str, prompt: str) -> str | bool | None:
    return {"a": None, "b": True, "c": False}.get(prompt, "no brace")


def raises(answer: str) -> None:
    raise ValueError(f"not {answer}")


@pytest.fixture
def schema(tmp_path: Path) -> str:
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    return str(tmp_path / "s.json")


def asked(**changes: Any) -> CaptureSettings:
    return CaptureSettings("llama", prompts="in.txt", max_new_tokens=9, **changes)


def test_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello\nyou"}], "id": 3}
    first = {"prompt": "Two\nlines", "source": 1, "choices": ["a", "b"]}
    (tmp_path / "in.jsonl").write_text(json.dumps(first) + "\n\n" + json.dumps(chat))
    found = read_texts(tmp_path / "in.jsonl", None).prompts
    assert [(item.line, item.text) for item in found] == [(1, "Two\nlines"), (3, "")]
    assert [item.constraint for item in found] == [Constraint("choices", "a,b"), None]
    text = tiny.tokenizer("llama")
    with pytest.raises(UsageError, match="line 3 has messages, and the tokenizer has no chat template"):
        with_chats(found, text)
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}|"
    monkeypatch.setattr(text, "chat_template", template)
    assert [item.text for item in with_chats(found, text)] == ["Two\nlines", "<|begin_of_text|>user: Hello\nyou|"]
    monkeypatch.setattr(text, "chat_template", "{{ raise_exception('no') }}")
    with pytest.raises(UsageError, match="line 3: the chat template refuses the messages: no"):
        with_chats(found, text)
    for line, problem in (
        ("{", "line 1: Input data was truncated"),
        ('{"text": "a"}', "line 1 has not one of prompt and messages"),
        (
            '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}',
            "line 1 has not one of prompt and messages",
        ),
        ('{"prompt": 3}', "line 1: Expected"),
        ('{"prompt": "a", "schema": {}, "grammar": ""}', "line 1 has schema and grammar"),
        ('{"prompt": "a", "choices": ["b,c"]}', r"choices \['b,c'\] are empty, or have a comma"),
        ('["a"]', "line 1: Expected"),
    ):
        (tmp_path / "wrong.jsonl").write_text(line)
        with pytest.raises(UsageError, match=problem):
            read_texts(tmp_path / "wrong.jsonl", None)


JUDGED: list[tuple[dict[str, str], str, str, str | None]] = [
    ({"schema": ""}, '{"age": 3}', "", None),
    ({"schema": ""}, '{"age": "3"}', "", 'not of the schema: $.age: "3" is not of type "integer"'),
    ({"schema": ""}, '{"age": 3', "", "not JSON: Expecting ',' delimiter: line 1 column 10 (char 9)"),
    ({"schema": ""}, '{"age": NaN}', "", "not JSON: JSON has no NaN"),
    ({"schema": ""}, '{"age": -1e999}', "", None),
    ({"regex": "[0-9]+"}, "12", "", None),
    ({"regex": "[0-9]+"}, "12a", "", "another text than the regular expression"),
    ({"choices": "yes,no"}, "no", "", None),
    ({"choices": "yes,no"}, "no,", "", "none of the choices"),
    ({"check": "test_answers:one_brace"}, "x", "a", None),
    ({"check": "test_answers:one_brace"}, "x", "b", None),
    ({"check": "test_answers:one_brace"}, "x", "c", "one_brace: not accepted"),
    ({"check": "test_answers:one_brace"}, "x", "d", "no brace"),
    ({"check": "test_answers:raises"}, "x", "", "ValueError: not x"),
    ({"schema": "", "check": "test_answers:raises"}, "x", "", "not JSON: Expecting value: line 1 column 1 (char 0)"),
]


@pytest.mark.parametrize(("changes", "answer", "prompt", "problem"), JUDGED)
def test_checks(schema: str, changes: dict[str, str], answer: str, prompt: str, problem: str | None) -> None:
    given = {name: value or schema for name, value in changes.items()}
    checks = checks_of(asked(**given))
    assert problem_of(checks, answer, prompt, cut=False) == problem
    cut = None if problem is None else f"stopped at the token limit: {problem}"
    assert problem_of(checks, answer, prompt, cut=True) == cut


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": "a,,b"}, "'a,,b' has an empty text or one twice"),
        ({"choices": "a", "regex": "a"}, "--regex and --choices exclude each other"),
        ({"grammar_file": "g", "processor": "qwen"}, "a grammar is for a processor that takes one"),
        ({"check": "no.such:thing"}, "no check 'no.such:thing': No module named 'no'"),
        ({"check": "json:dumps"}, "the check 'json:dumps' has "),
        ({"schema": "[]"}, "is no JSON schema: it holds no object"),
        ({"schema": '{"type": 3}'}, "is no JSON schema: 3 is not"),
        ({"schema": "{"}, "is no JSON schema: Input data was truncated"),
    ],
)
def test_checks_that_cannot_be_made(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    (tmp_path / "s.json").write_text(changes.get("schema", ""))
    given = {**changes, **({"schema": str(tmp_path / "s.json")} if "schema" in changes else {})}
    with pytest.raises(UsageError, match=message):
        checks_of(asked(**given))


NOWHERE: list[tuple[list[str], bool, int]] = [
    (["{", *[" "] * 8, "}"], False, 8),
    (["{", *[" \n"] * 7, "}"], False, 0),
    (["0.", *["333"] * 28, "}"], False, 2),  # 78 digits are kept
    (["a", *["b", "c"] * 8], True, 14),  # its first round counts as text
    (["a", *["b", "c"] * 8], False, 0),  # it ended
    (["a", *["b", "c"] * 3], True, 0),
    ([*"abcdefghijklmnop"], True, 0),
    ([""] * 20, True, 19),
    ([], True, 0),
]


@pytest.mark.parametrize(("pieces", "cut", "count"), NOWHERE)
def test_tokens_that_lead_nowhere(pieces: list[str], cut: bool, count: int) -> None:
    found = led_nowhere(pieces, cut)
    assert (len(found), sum(found)) == (len(pieces), count)


def test_tokens_that_the_tokenizer_would_not_write() -> None:
    """`name` is a token; the end token is of no text, and a half character no text."""
    whole, half, eos = tiny.ids("llama", "name,"), tiny.ids("llama", "\u9f98")[:1], 128_001
    parts = [token for text in ("na", "me", ",") for token in tiny.ids("llama", text)]

    def cut(tokens: list[int]) -> str | None:
        return cut_otherwise(tiny.tokenizer("llama"), tiny.table("llama"), tokens, {eos})

    assert (cut([*whole, eos]), cut([*parts, eos]), cut([])) == ("000", "1100", "")
    assert cut(half) is None


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("kind", ["schema", "regex", "choices", "grammar_file"])
def test_a_constraint_for_the_packages(name: str, kind: str, schema: str, tmp_path: Path) -> None:
    """The first tokens that may follow are those that begin such an answer."""
    pytest.importorskip(name)
    target = tiny.loaded("llama").target
    grammar = 'root ::= [ab] "c"' if name == "xgrammar" else 'start: ("a" | "b") "c"'
    (tmp_path / "g").write_text(grammar)
    value = {"schema": schema, "regex": "[ab]c", "choices": "a,bc", "grammar_file": str(tmp_path / "g")}[kind]
    made: Any = processor_of(asked(processor=name, **{kind: value}), target)
    import torch

    scores = torch.zeros(1, target.logits_width)
    out = made.start(Rows([Prompt(1, "", "?", None)], 1))(torch.zeros(1, 1, dtype=torch.int64), scores)
    allowed = {target.table.of(token)[:1] for token in out[0].isfinite().nonzero().flatten().tolist()}
    assert allowed == ({b"{"} if kind == "schema" else {b"a", b"b"})
    text = {"schema": json.dumps(SCHEMA), "grammar_file": grammar}.get(kind, value)
    assert made.parameters[kind.removesuffix("_file")] == text


def test_answers_are_shown_judged_and_counted(tmp_path: Path) -> None:
    """A model of random weights repeats itself until the limit: tokens, not useful ones."""
    (tmp_path / "in.txt").write_text("a\n<b>\n")
    check = "test_answers:one_brace"
    given = settings(prompts="in.txt", max_new_tokens=30, repeats=1, warmup=0, check=check)
    path = captured(tmp_path / "out.json", given, read_texts(tmp_path / "in.txt", 2)).path
    report = api.report(path)
    run = report.run
    assert run is not None
    assert [(item.valid, item.problem) for item in run.sequences] == [
        (True, None), (False, "stopped at the token limit: no brace"),
    ]  # fmt: skip
    assert all(item.junk and item.text for item in run.sequences)
    figures = figure_values(report)
    assert [figures[name] for name in ("valid_ratio", "check", "removed_ratio")] == [0.5, check, None]
    useful = "".join((run.sequences[0].text or "").split())
    assert figures["tokens_per_useful_character"] == pytest.approx(60 / len(useful))
    own = sum(len(tiny.ids("llama", item.text or "")) for item in run.sequences)
    assert figures["respelled_tokens_per_answer"] == (60 - own) / 2
    (loops,) = report.table("runaway").to_json()
    assert (loops["cause"], loops["answers"], loops["tokens"], figures["runaway_tokens"]) == (
        "loop", 2, run.junk_tokens, run.junk_tokens,
    )  # fmt: skip
    assert run.junk_tokens == sum(item.junk for item in run.sequences)
    (found,) = (item for item in report.findings if item.id == "runaway_answers")
    assert f"{run.junk_tokens} tokens of 2 of 2 answers" in found.evidence
    screen = render_document(report_document(report), whole=False)
    for shown in (render(report), screen):
        assert "no: stopped at the token limit" in shown
    assert "1 stopped at the token limit" in render(report)
    assert "&lt;b&gt;" in render(report, "html")
    assert json.loads(render(report, "json"))["run"]["sequences"][1]["text"] == run.sequences[1].text


def test_what_a_constraint_does_to_the_text(tmp_path: Path) -> None:
    """White space that a regular expression allows without an end, in tokens of a random model's choice."""
    (tmp_path / "in.txt").write_text("a\n")
    given = settings(prompts="in.txt", max_new_tokens=20, repeats=1, warmup=0, processor="table", regex="xy +",
                     disagreement=True)  # fmt: skip
    path = captured(tmp_path / "out.json", given, read_texts(tmp_path / "in.txt", 1)).path
    report = api.report(path)
    assert report.run is not None
    (answer,) = report.run.sequences
    (row,) = report.table("runaway").to_json()
    assert (row["cause"], row["tokens"]) == ("white space", answer.junk)
    assert answer.text is not None
    assert answer.junk in (18, 19)  # all but `x` and `y`, or `xy`
    found = report.run.disagreement
    assert found is not None
    assert {item.text for item in found.groups} == {None, "word", "space"}
    figures = figure_values(report)
    assert figures["removed_ratio"] == found.all.mean_removed
    assert 0.9 < found.all.mean_removed < 1
    assert 0 < figures["first_choice_forbidden_ratio"] <= 1
    assert figures["respelled_tokens_per_answer"] == 20 - len(tiny.ids("llama", answer.text))
    assert figures["unlike_ratio"] == found.all.unlike_ratio
    # After `x` the `y` is forced; the tokenizer writes both as one token.
    assert figures["forced_unlike_ratio"] == (1.0 if answer.junk == 18 else None)
