"""Reports of plain-text runs never mention molecules, and those of random weights never mention drift."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from page_data import render, report_of

from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import Expectation
from molprof.analysis.documents.figures import reports_of
from molprof.analysis.documents.plots import NotRecordedError, plot_svg

OF_MOLECULES = re.compile(
    r"molecul|SMILES|junk|filler|placeholder|coordinate|\bblock|LLaMA|Qwen|\bvalid\b|FREE|drift", re.I
)


def of_prompts() -> dict[str, Any]:
    """The tiny run, as if its prompts had been plain text: all tokens are free, none is in a block."""
    content = tiny_trace.document()
    for event in content["traceEvents"]:
        if event.get("cat") == "molprof.sequence":
            count = event["args"]["tokens"]
            kinds = ["free"] * (count - 1) + ["eos" if event["args"]["sequence"] else "free"]
            event["args"].update(smiles=None, kind=kinds, block=[-1] * count)
        if event.get("cat") == "molprof.token":
            event["args"].update(kind="eos" if event["args"]["kind"] == "eos" else "free", block=-1)
    for run, kinds in zip(content["molprof"]["molecules"], ("fff", "fe"), strict=True):
        blocks = [-1] * len(kinds)
        run.update(smiles=None, prompt="Say hello", valid=None, problem=None, template=None, kinds=kinds, blocks=blocks)
    content["molprof"]["model"].update(name="mine", family="gpt2", tokenizer="mine")
    content["molprof"]["generation"]["placeholder"] = None
    content["molprof"]["generation"]["processor"] = "mine"
    return content


@pytest.mark.parametrize("form", ["table", "html"])
def test_no_such_word(tmp_path: Path, form: str) -> None:
    first, other = report_of(tmp_path, of_prompts(), "a"), report_of(tmp_path, of_prompts(), "b")
    for shown in (render(first, form), render(compare([first, other]), form)):
        shown = re.sub(r"<style.*?</style>|<script.*?</script>", "", shown, flags=re.DOTALL)
        assert not OF_MOLECULES.findall(shown)
        assert "per prompt" in shown


def test_what_it_is_about_instead(tmp_path: Path) -> None:
    shown = render(report_of(tmp_path, of_prompts()))
    assert "2 prompts, 5 tokens" in shown
    assert "Say hello" in shown
    assert "1 of 2 answers stopped at the token limit of 3." in shown
    assert "tokens per prompt" in shown


def test_predictions_about_molecules_are_not_made(tmp_path: Path) -> None:
    reports = [report_of(tmp_path, of_prompts(), name) for name in ("a", "b")]
    assert compare(reports).predictions == ()
    own = Expectation("mine", "fewer steps", "decode_steps", "lower")
    assert [item.id for item in compare(reports, expectations=[own]).predictions] == ["mine"]


def test_random_weights_have_no_drift_to_report(tmp_path: Path) -> None:
    """The same run with junk in it, of trained and of random weights."""
    contents = tiny_trace.document(), tiny_trace.document()
    for content, weights in zip(contents, ("trained", "random"), strict=True):
        content["molprof"]["model"] |= {"size": "0.6b", "weights": weights}
    trained, random = report_of(tmp_path, contents[0], "trained"), report_of(tmp_path, contents[1], "random")
    assert [[item.id for item in report.findings if item.id == "junk_tokens"] for report in (trained, random)] == [
        ["junk_tokens"], [],
    ]  # fmt: skip
    for title in ("Junk blocks by counting rule", "Junk in coordinate blocks"):
        assert (title in render(trained), title in render(random)) == (True, False)
    assert "drift: not meaningful, the weights are random" in render(random)
    with pytest.raises(NotRecordedError, match="drift of trained weights: the weights are random"):
        plot_svg("drift", reports_of(random))
    found = compare([trained, random])
    assert found.labels == ("llama 0.6b lp:generic", "llama 0.6b random lp:generic")
    assert "random weights, so tokens, junk and drift are not meaningful: llama 0.6b random lp:generic" in found.notes
