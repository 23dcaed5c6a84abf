"""Masks of a server's answers, filled again at the client: where tokens stood, what is not recorded, the finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from goldens import called
from msgspec import to_builtins
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from molprof.common.attached import KEY, Answer, AnswerMasks, Attached, Masks, Pass
from molprof.profiler.attach.replay import masks_of
from molprof.profiler.attach.requests import Request
from molprof.profiler.capture.answers import Judge

END = 256


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer of single bytes, and an end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({text: place for place, text in enumerate([*alphabet, "<end>"])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("words")
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    return str(folder)


def ids_of(words: str, text: str) -> list[int]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(words)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def asked(**fields: Any) -> Request:
    return Request(1, "/v1/completions", "x", {"prompt": "x"}, {"prompt": "x", **fields} if fields else None, Judge())


def answered(text: str, token_ids: list[int] | None, tokens: int, reasoned: int = 0) -> Answer:
    return Answer(1, 0, [1], 2, tokens, text, False, None, token_ids=token_ids, reasoned=reasoned)


def test_masks_of_answers_by_the_table(words: str) -> None:
    """The table forces c and d of ab[0-9]cd, and the end; reasoning before it is free."""
    request = asked(structured_outputs={"regex": "ab[0-9]cd"})
    sent = [*ids_of(words, "ab1cd"), END]

    def masks(request: Request, answer: Answer) -> AnswerMasks:
        (of_answer,) = masks_of([request], [answer], words, "table").answers
        return of_answer

    assert masks(request, answered("ab1cd", sent, 6)) == AnswerMasks(1, 6, "ooiooo")
    assert masks(request, answered("ab1cd", None, 6)).stood == "ooiooo"  # as the tokenizer cuts it
    thought = [*ids_of(words, "hm."), *sent]
    assert masks(request, answered("ab1cd", thought, 9, reasoned=2)).stood == "fffooiooo"
    assert masks(asked(), answered("ab", ids_of(words, "ab"), 2)).stood == "ff"
    for answer, why in (
        (answered("abc", ids_of(words, "abc"), 3), "table: it forbids token 3, 'c', which the server wrote"),
        (answered("ab1cd", sent, 7), "the server sends 6 tokens, the server counts 7"),
    ):
        assert masks(request, answer) == AnswerMasks(1, answer.tokens, "", why)
    unknown = masks(asked(tool_choice="required"), answered("ab1cd", sent, 6))
    assert unknown.missing == "molprof does not know what the server keeps the answer to"


def test_a_structural_tag_by_the_servers_own_matcher(words: str) -> None:
    pytest.importorskip("xgrammar")
    schema = {"enum": ["yes", "no"]}
    tag = {"structures": [{"begin": "<a>", "schema": schema, "end": "</a>"}], "triggers": ["<"]}
    text = 'so: <a>"no"</a>.'
    request = asked(structured_outputs={"structural_tag": json.dumps(tag)})
    (masks,) = masks_of([request], [answered(text, [*ids_of(words, text), END], len(text) + 1)], words, None).answers
    assert masks.stood[:4] == "ffff"
    assert masks.stood[4:7] == "too"
    assert masks.stood.endswith("ooff")
    assert len(masks.stood) == masks.tokens == 17


def test_what_is_missing_has_its_reason(tmp_path: Path) -> None:
    request, answer = asked(regex="a"), answered("a", None, 2)
    for answers, tokenizer, why in (
        (None, "x", "there was no warm-up pass (--warmup)"),
        ([answer], None, "the server names no folder of the model here (--tokenizer)"),
    ):
        masks = masks_of([request], answers, tokenizer, None)
        assert (masks.engine, [one.missing for one in masks.answers]) == ("", [why])


def test_the_report_has_forced_text_and_where_tokens_stood(tmp_path: Path) -> None:
    """Two answers at a time, of 8 and 4 tokens: all choices need 4 steps of 8, and the server took 1 ms a token."""
    stood = ["ooooiiii", "fttf"]
    answers = [
        Answer(line, 0, [1_000_000 * step for step in range(1, len(one) + 1)], 9_000_000, len(one), "", False, True)
        for line, one in enumerate(stood, 1)
    ]
    masks = Masks("xgrammar 0.2.8", [AnswerMasks(line, len(one), one) for line, one in enumerate(stood, 1)])
    masks.answers.append(AnswerMasks(3, 5, missing="it forbids token 1"))
    attached = Attached(
        "vllm", "0.32", "m", "constrained", "s", 2, None, [Pass(9_000_000, answers)] * 3, masks=masks
    )  # fmt: skip
    content = tiny_trace.document()
    del content["molprof"]
    tiny_trace.write(tmp_path / "served.json", {**content, KEY: to_builtins(attached)})
    code, out, err = called(["report", "served.json", "--format", "json"], tmp_path)
    assert code == 0, err
    report = json.loads(out)
    names = ("forced_ratio", "forced_longest_run", "free_tokens", "tag_tokens", "forced_tokens", "inside_tokens")
    assert [report["figures"][name] for name in names] == [4 / 12, 4, 2, 2, 4, 4]
    (check,) = (one for one in report["checks"] if one["id"] == "stood")
    assert (check["left"], check["right"], check["holds"]) == (12, 12, True)
    (found,) = (one for one in report["findings"] if one["id"] == "forced_text")
    title = "33.3 % of tokens were forced, in runs of 4: jump-forward would save up to 2.00 ms per answer"
    assert (found["title"], found["gain"]["high"]) == (title, 0.5)
    assert found["evidence"] == (
        "4 of 12 tokens of 2 answers in 1 run, the longest of 4, by masks of xgrammar 0.2.8; 1.00 ms between tokens"
        " (p50); with as many requests at a time, all choices need 4 steps or more, all tokens 8"
    )
    code, out, _ = called(["report", "served.json", "--all"], tmp_path)
    section = out.partition("Where tokens stood")[2].partition("\n\n")[0]
    assert "masks of line 3 are not recorded: it forbids token 1" in " ".join(section.split())
    assert section.splitlines()[-1].split() == ["all", "12", "2", "2", "4", "4", "4"]
