"""Where tokens of an answer stand: in the parts of structural tags by the text, and forced or free by masks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from molprof.analysis.figures.stood import count_stood, fewest_steps, forced_of_answers
from molprof.profiler.constraints.tags import format_of, token_letters
from molprof.profiler.models.target import TokenBytes
from molprof.profiler.molecules.bodies import enforced

BYTES = TokenBytes(tuple(bytes([value]) for value in range(256)), frozenset(), 256)
JSON: dict[str, Any] = {"type": "json_schema", "json_schema": {}}
CALLS = {
    "structures": [{"begin": "<f=a>", "schema": {}, "end": "</f>"}, {"begin": "<f=ab>", "schema": {}, "end": "</f>"}],
    "triggers": ["<f="],
}
THINK = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": ["</t>", "</think>"]}


def tag(form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}


def sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return tag({"type": "sequence", "elements": list(elements)})


def text_of(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        (CALLS, ["f:hi <f ", "t:<f=ab>", 'i:{"a": "</f>\\"", "b": [1, {}]}', "t:</f>", "f: and ", "t:<f=a>", "i:1"]),
        (CALLS, ["f:x", "t:<f=b"]),
        (sequence(THINK, text_of("A:"), JSON), ["t:<t>", "f:a, b", "t:</think>", "t:A:", "i:-12.5"]),
        (sequence({"type": "optional", "content": THINK}, JSON, text_of(".")), ["i: true", "t:."]),
        (sequence({"type": "any_text"}, text_of("!"), {"type": "regex", "pattern": "a+"}), ["f:ab", "t:!", "i:aa"]),
        (tag({"type": "or", "elements": [THINK, JSON]}), ['i:"a"']),
        (tag({"type": "tags_with_separator", "tags": [THINK], "separator": ","}),
         ["t:<t>", "f:a", "t:</t>", "t:,", "t:<t>", "f:b"]),
        (tag({"type": "dispatch", "rules": [["go:", JSON]], "loop": True}), ["f:well ", "t:go:", "i:[2]", "f: ok"]),
        (tag({"type": "triggered_tags", "triggers": ["<t"], "tags": [THINK], "stop_after_first": True}),
         ["f:a", "t:<t>", "f:b", "t:</t>"]),
        (tag({"type": "tag", "begin": {"type": "token", "token": 60}, "content": JSON, "end": ""}), ["t:<", "i:{}"]),
        (tag({"type": "json_schema", "style": "qwen_xml", "json_schema": {}}), ["i:<parameter=a>1</parameter>"]),
    ],
)  # fmt: skip
def test_the_parts_of_a_structural_tag(form: dict[str, Any], parts: list[str]) -> None:
    """Each part is a letter and its text; a text may be cut, and JSON may hold the text that ends a tag."""
    text = "".join(part[2:] for part in parts).encode()
    letters = token_letters(list(text), [2] * len(text), 3, BYTES, format_of(json.dumps(form)))
    assert letters == "".join(part[0] * len(part[2:]) for part in parts)


def test_masks_come_before_the_text() -> None:
    assert token_letters(list(b"abc"), [1, 256, 2], 256, BYTES) == "ofi"
    assert token_letters(list(b"<f=a>"), [256, 1, 2, 2, 2], 256, BYTES, format_of(json.dumps(CALLS))) == "tottt"
    with pytest.raises(ValueError, match="no structural tag"):
        format_of('{"structures": 1}')


def test_the_fewest_steps_that_choices_need() -> None:
    """Of two rows, six and one choices: the longer answer sets the steps; forced tokens make runs."""
    forced = forced_of_answers(["ffooi", "oiiiiii", "o"], 2)
    assert forced is not None
    assert (forced.tokens, forced.runs, forced.longest_run, forced.least_steps) == (4, 3, 2, 6)
    assert forced.stood == {"free": 2, "tag": 0, "forced": 4, "inside": 7} == count_stood("ffooioiiiiiio")
    assert fewest_steps([5, 7, 1], 2) == 7
    assert fewest_steps([3, 3, 3], 2) == 5
    assert forced_of_answers([], 2) is None


TOOL = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "$defs": {"x": {}}}}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": tag(JSON)}, ("", "structural_tag", tag(JSON))),
        ({"structured_outputs": {"structural_tag": json.dumps(CALLS)}}, ("", "structural_tag", CALLS)),
        ({"structured_outputs": {"choice": ["a.b", "c, d"]}}, ("", "regex", r"a\.b|c, d")),
        ({"ebnf": "root ::= 'a'"}, ("", "grammar", "root ::= 'a'")),
        ({"vllm_xargs": {"table_regex": "a+", "other": 1}}, ("table", "regex", "a+")),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "a"}}}, ("", "schema", TOOL["function"]["parameters"])),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "b"}}}, None),
        ({"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}, ("", "schema", {
            "type": "array", "minItems": 1, "maxItems": 1, "$defs": {"x": {}},
            "items": {"type": "object", "anyOf": [{
                "properties": {"name": {"type": "string", "enum": ["a"]}, "parameters": {"type": "object"}},
                "required": ["name", "parameters"],
            }]},
        })),
        ({"response_format": {"type": "json_object"}}, ("", "schema", {"type": "object"})),
        ({"max_tokens": 3}, None),
    ],
)  # fmt: skip
def test_what_a_server_keeps_an_answer_to(body: dict[str, Any], expected: tuple[str, str, Any] | None) -> None:
    known = enforced(body)
    assert (known is None) == (expected is None)
    if known is not None and expected is not None:
        text = json.loads(known[2]) if known[1] in ("schema", "structural_tag") else known[2]
        assert (*known[:2], text) == expected
