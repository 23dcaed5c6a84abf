"""The pass for disagreement: exact on literal scores, and the same as a full forward over the finished text."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import captured, inputs, settings
from tiny import loaded

from molprof import api
from molprof.common.errors import UsageError
from molprof.common.manifest import Disagreement, SequenceRun
from molprof.profiler.capture import account
from molprof.profiler.capture.disagreement import Watched
from molprof.profiler.capture.passes import Progress
from molprof.profiler.constraints import make_processor
from molprof.profiler.molecules.template import build_template

INF = math.inf


class Masks:
    """Forbids at each call what a test says, in place, as the studied processors do."""

    def __init__(self, *forbidden: list[list[int]]) -> None:
        self._forbidden = list(forbidden)
        self.masked_logits = [7, 8]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, columns in enumerate(self._forbidden.pop(0)):
            scores[row, columns] = -INF
        return scores


def logits(*shares: float) -> list[float]:
    return [math.log(share) for share in shares]


def test_literal_scores() -> None:
    watched = Watched(Masks([[1, 2, 3], []], [[0], []], [[], [1, 2, 3]]))
    steps = [
        [logits(1, 2, 3, 4), logits(4, 1, 2, 1)],
        [logits(7, 1, 1, 1), logits(1, 1, 1, 1)],
        [logits(1, 1e-30, 1, 2), logits(1, 1, 1, 1)],
    ]
    tokens = [[0, 2], [3, 1], [1, 0]]  # by step and row; the second row ends with its second token
    ids = torch.tensor([[9], [9]])
    for scores, written in zip(steps, tokens, strict=True):
        given = torch.tensor(scores)
        assert watched(ids, given) is given
        ids = torch.cat([ids, torch.tensor(written).unsqueeze(1)], dim=1)
    assert watched.masked_logits == [7, 8]
    assert watched.finish([[0, 3, 1], [2, 1]]) == [
        Disagreement([0.1, 0.1, 2.5e-31], [3, 1, 3], "cfo", "110"),
        Disagreement([0.25, 0.25], [1, 0], "oo", "00"),
    ]


def test_no_steps() -> None:
    assert Watched(Masks()).finish([[]]) == [Disagreement([], [], "", "")]


def recomputed(run: SequenceRun, processor: Any) -> list[tuple[float, int, int, str, str]]:
    """Probability, bounds of the rank, choice and forbidden of each token, from one forward over the whole text."""
    model = loaded("llama")
    prompt = model.tokenizer(run.prompt)["input_ids"]
    whole = torch.tensor([[*prompt, *run.token_ids]])
    with torch.inference_mode():
        found = model.model(whole).logits[0].float()
    molecule = next(item for item in MOLECULES if item.smiles == run.smiles)
    template = build_template(molecule, model.tokenizer, processor.placeholder)
    studied = processor.start([template], len(prompt))
    rows = []
    for place, token in enumerate(run.token_ids):
        scores = found[len(prompt) + place - 1]
        given = scores[token]
        masked = studied(whole[:, : len(prompt) + place], scores.clone().unsqueeze(0))[0]
        allowed = int((masked > -INF).sum())
        rows.append(
            (
                float(torch.softmax(scores.double(), 0)[token]),
                int((scores > given + 1e-4).sum()),
                int((scores > given - 1e-4).sum()),
                "c" if allowed == 1 else "f",
                "1" if masked[scores.argmax()] == -INF else "0",
            )
        )
    return rows


MOLECULES: list[Any] = []


def test_a_capture_records_what_a_full_forward_says(tmp_path: Path) -> None:
    count, text = 3, "C\nCO\nO\n"
    seen: list[Progress] = []
    prompts = inputs(tmp_path, count, text)
    MOLECULES[:] = [prompt.molecule for prompt in prompts.prompts]
    asked = settings(processor="generic", repeats=1, warmup=0, count=count, sampling="top_k", top_k=5, seed=3)
    plain = captured(tmp_path / "out.json", asked, prompts)
    assert [run.disagreement for run in plain.manifest.molecules] == [None] * count
    asked = dataclasses.replace(asked, disagreement=True)
    result = captured(tmp_path / "out.json", asked, prompts, report=seen.append)
    assert "another text" not in " ".join(result.notes)
    assert [item.batch for item in seen if item.stage == "disagreement"] == list(range(count))

    processor = make_processor("generic", loaded("llama").target)
    for run, same in zip(result.manifest.molecules, plain.manifest.molecules, strict=True):
        assert run.token_ids == same.token_ids  # the pass changes nothing that the others write
        assert run.masked_logits == same.masked_logits
        found = run.disagreement
        assert found is not None
        assert len(found.probabilities) == len(found.ranks) == len(found.choices) == len(found.forbidden)
        expected = recomputed(run, processor)
        assert found.probabilities == pytest.approx([row[0] for row in expected], rel=1e-3)
        for rank, (_, low, high, _, _) in zip(found.ranks, expected, strict=True):
            assert low <= rank <= high
        assert found.choices == "".join(row[3] for row in expected)
        assert found.forbidden == "".join(row[4] for row in expected)
        assert found.choices.count("f") == run.template.free if run.template else False

    report = api.report(result.path)
    assert report.run is not None
    figures = report.run.disagreement
    assert figures is not None
    assert (figures.molecules, figures.all.tokens) == (
        count,
        sum(len(run.token_ids) for run in result.manifest.molecules),
    )
    assert sum(item.agreement.tokens for item in figures.bins) == figures.all.tokens
    assert sum(item.agreement.tokens for item in figures.groups if item.text is None) == figures.all.tokens


def test_another_text_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = account.sequence_runs

    def other(runner: Any, plans: Any, result: Any, watched: Any, masked: Any) -> Any:
        (batch, figures), *rest = watched
        changed = replace(batch, rows=(batch.rows[0], (1, 2, 3)))
        return original(runner, plans, result, [(changed, figures), *rest], masked)

    monkeypatch.setattr("molprof.profiler.capture.run.sequence_runs", other)
    asked = settings(processor="generic", repeats=1, warmup=0, max_new_tokens=4, disagreement=True, count=2)
    result = captured(tmp_path / "out.json", asked, inputs(tmp_path, 2))
    assert [run.disagreement is None for run in result.manifest.molecules] == [False, True]
    assert result.notes[-1] == "the pass for disagreement wrote another text for 1 molecules: none is recorded for them"
    report = api.report(result.path)
    assert report.run is not None
    assert report.run.disagreement is not None
    assert report.run.disagreement.molecules == 1


def test_needs_a_processor() -> None:
    with pytest.raises(UsageError, match="disagreement is between the model and a logits processor"):
        settings(disagreement=True)


def test_needed_tokens_of_the_blocks_are_recorded(tmp_path: Path) -> None:
    """A random model under the generic block-list: whatever it writes, drift adds up."""
    asked = settings(processor="generic", repeats=1, warmup=0)
    result = captured(tmp_path / "out.json", asked)
    for run in result.manifest.molecules:
        assert run.template is not None
        assert run.needed_per_block is not None
        assert len(run.needed_per_block) == run.template.blocks
    report = api.report(result.path)
    assert report.run is not None
    assert report.run.drift is not None
    needed = [value for run in result.manifest.molecules for value in run.needed_per_block or []]
    assert report.run.drift.known_blocks == sum(value is not None for value in needed)
    rules = {rule.rule: rule for rule in report.run.drift.junk_rules}
    assert rules["strict"].blocks == report.run.junk_blocks
    assert rules["malformed"].blocks == report.run.malformed_blocks
