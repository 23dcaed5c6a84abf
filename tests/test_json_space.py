"""The white space that engines allow between the tokens of JSON, and the form that `drift --schema` uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Cli

from molprof.profiler.constraints.json_space import MOST, most_spaces, spaces

SCHEMA = json.dumps({
    "type": "object", "required": ["creates"], "additionalProperties": False,
    "properties": {"creates": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 40}}},
})  # fmt: skip


@pytest.mark.parametrize("most", [0, 1, 12, MOST])
def test_the_longest_run_of_spaces_is_found(most: int) -> None:
    def accepts(text: str) -> bool:
        return text.replace(" ", "") == '{"a":[]}' and text.count(" ") <= most and '" ' not in text[:4]

    assert most_spaces(accepts, '{"a":[]}') == most


def test_a_text_that_an_engine_refuses_says_nothing() -> None:
    assert most_spaces(lambda text: False, "{}") is None


def test_spaces_inside_strings_are_no_white_space_of_json() -> None:
    """Only a string takes spaces."""
    assert most_spaces(lambda text: text.startswith('["') and text.endswith('"]'), '["a,b"]') == 0


def test_engines_differ_in_what_they_allow() -> None:
    pytest.importorskip("xgrammar", reason="XGrammar is not installed")
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    found = {item.engine: item.most for item in spaces(SCHEMA, '{"creates":[]}')}
    assert (found["table"], found["xgrammar"], found["llguidance"]) == (0, MOST, MOST)


def test_drift_says_of_which_form_of_json_it_speaks(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA)
    done = molprof("drift", "--tokenizer", "qwen", "--schema", str(tmp_path / "schema.json"))
    assert done.returncode == 0
    text = done.stdout
    assert "of JSON as table writes it, without white space between its tokens" in text
    assert "White space between tokens of JSON, by engine" in text
