"""Processor classes of other projects: made by the names of their parameters, in captures and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import other_project
import pytest
from captures import captured, settings
from conftest import Cli
from tiny import ids, loaded

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.common.text_format import DEFAULT
from molprof.profiler.bench.cases import GenerateCase, case_id, from_json, to_json
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.construct import read_arguments
from molprof.profiler.molecules.prompts import read_prompts, read_texts
from molprof.profiler.molecules.smiles import molecule


def run(folder: Path, name: str, **changes: Any) -> Any:
    path = folder / "in.smi"
    path.write_text("CC=O\nC\nOC=C\n")
    asked = settings(processor=f"other_project:{name}", repeats=1, warmup=0, **changes)
    return captured(folder / "out.json", asked, read_prompts(path, 3)).manifest


def test_a_class_with_templates_of_its_own_runs_without_an_adapter(tmp_path: Path) -> None:
    given = {"templates": "other_project:skeleton_of", "forbidden": "<>[]"}
    asked = tuple(f"{key}={value}" for key, value in given.items())
    manifest = run(tmp_path, "SkeletonConstraint", processor_args=asked, disagreement=True)
    assert manifest.resolved.processor_parameters == given
    assert manifest.settings.processor_args == asked
    for found in manifest.molecules:
        read = molecule(found.smiles)
        assert DEFAULT.without_blocks(found.text) == DEFAULT.answer_of("".join(
            piece + atom for piece, atom in zip(read.pieces, (*read.atoms, ""), strict=True)
        ))  # fmt: skip
        assert found.kinds.endswith("e")
        assert "[" not in "".join(DEFAULT.open_block.findall(found.text))
        assert found.disagreement is not None


def test_what_a_batch_gives(tmp_path: Path) -> None:
    other_project.Listed.made.clear()
    run(tmp_path, "Listed", processor_args=('mode={"a": [1]}',), max_new_tokens=2, sort=True)
    first, second = other_project.Listed.made[:2]
    assert (first["smiles"], first["size"]) == (["CC=O", "C=CO"], 2)
    assert first["prompts"] == ["[SMILES]CC=O[/SMILES]", "[SMILES]C=CO[/SMILES]"]
    assert len(first["ids"]) == 2
    assert first["lengths"] == [max(len(ids("llama", text)) for text in first["prompts"])] * 2
    assert (second["smiles"], second["size"], second["mode"]) == (["C"], 1, {"a": [1]})


def test_prompts_of_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "ask.txt"
    path.write_text("How many?\nWhy?\n")
    asked = settings(processor="other_project:OnlyLengths", processor_args=("most=3",), repeats=1, count=2,
                     max_new_tokens=9, prompts=str(path))  # fmt: skip
    manifest = captured(tmp_path / "out.json", asked, read_texts(path, 2)).manifest
    assert [len(found.token_ids) for found in manifest.molecules] == [4, 4]
    with pytest.raises(UsageError, match="needs molecules"):
        captured(tmp_path / "b.json", settings(processor="other_project:Listed", max_new_tokens=9), read_texts(path, 2))


@pytest.mark.parametrize(
    ("name", "given", "message", "hint"),
    [
        ("Needs", (), "requires model_config, beams, which molprof cannot supply", "--processor-arg model_config=VALUE;"
         " molprof supplies target, tokenizer, eos_token_id, pad_token_id, bos_token_id, vocab_size, device, templates,"
         " prompt_lengths, prompt_length, prompts, smiles, batch_size"),
        ("OnlyLengths", ("top=3",), "has no parameter 'top'",
         "its parameters: most, eos_token_id, prompt_length, vocab_size, device"),
        ("OnlyLengths", ("most",), "--processor-arg 'most' is not KEY=VALUE", "e.g. --processor-arg top=5"),
        ("OnlyLengths", ("most=1", "most=2"), "--processor-arg most is given twice", "a list is JSON: KEY=[1,2]"),
        ("SkeletonConstraint", ("templates=none:here",), "no function 'none:here' makes templates: No module",
         "package.module:function"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_told_in_one_line(name: str, given: tuple[str, ...], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_processor(f"other_project:{name}", loaded("llama").target, given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_a_function_of_one_parameter_takes_the_target_unless_its_name_says_more() -> None:
    target = loaded("llama").target
    assert make_processor("other_project:numbers", target, ("n=4", "sizes=[2]")).parameters == {"n": 4, "sizes": [2]}
    assert make_processor("other_project:numbers", target).parameters == {}  # n is a Target


def test_values_are_json_or_text() -> None:
    texts = ("a=1", "b=1e-3", "c=true", "d=null", 'e="1"', "f=[1,2]", "g=plain text", "h=a=b", "i=")
    assert read_arguments(texts) == {
        "a": 1, "b": 1e-3, "c": True, "d": None, "e": "1", "f": [1, 2], "g": "plain text", "h": "a=b", "i": "",
    }  # fmt: skip


def test_settings_and_cases() -> None:
    with pytest.raises(UsageError, match=r"^--processor-arg is for a processor of your own$"):
        CaptureSettings("llama", processor="generic", processor_args=("a=1",))
    case = GenerateCase("llama", processor="a:B", processor_args=("a=1",))
    assert from_json({**to_json(case), "processor_args": ["a=1"]}) == case
    assert case_id(case) != case_id(GenerateCase("llama", processor="a:B"))
    assert "processor_args" not in to_json(GenerateCase("llama"))


def test_the_commands_take_arguments_for_such_a_processor_alone(molprof: Cli) -> None:
    for command in (("capture", "--model", "llama", "-o", "x.json"), ("bench", "batch", "--dry-run")):
        refused = molprof(*command, "--processor", "generic", "--processor-arg", "a=1")
        assert (refused.returncode, "processor of your own" in refused.stderr) == (2, True)
    refused = molprof("bench", "batch", "--dry-run", "--processor", "string:Formatter", "--processor-arg", "a=1")
    assert (refused.returncode, "string:Formatter has no parameter 'a'" in refused.stderr) == (2, True)
