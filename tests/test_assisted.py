"""transformers' assisted decoding writes the texts of `generate`, and the fate of each draft is counted."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import captured, inputs, settings
from msgspec import UNSET
from test_jump import GENERATE, batches, lively, rows, runner

from molprof import api
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.figures.catalog import METRICS
from molprof.common.drafts import Drafts
from molprof.common.errors import UsageError
from molprof.common.values import number_text
from molprof.profiler.engines import BatchResult

SMILES = ("C",)


@pytest.fixture(scope="module")
def assistants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of the model itself, and of one that is like it."""
    found = {}
    for name in ("same", "like"):
        loaded = lively("llama")
        model = copy.deepcopy(loaded.model)
        head = model.get_output_embeddings().weight
        head.data = head.data.contiguous()
        if name == "like":
            torch.manual_seed(1)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(torch.randn_like(weight) * weight.std() / 4 if weight.dim() == 2 else 0)
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        found[name] = str(folder)
    return found


def drafted(assistant: str, processor: str | None, **more: Any) -> tuple[list[BatchResult], Drafts]:
    """The batches of a run, and its drafts summed."""
    asked = {"assistant": assistant, "batch_size": 1, "dtype": "float32", "device": "cpu", **more}
    loop = dataclasses.replace(GENERATE, processor=processor)
    found = batches(runner(loop, processor=processor, **asked), *SMILES, size=1, bound=None if processor else 20)
    for batch in found:
        (drafts,), (counts,) = batch.drafts or (None,), batch.appended or ((),)
        assert drafts is not None
        assert sum(counts) == len(batch.rows[0])
        # A round appends what was accepted and a token of the model, which an end that was accepted does without.
        assert sum(counts) - len(counts) <= drafts.accepted <= sum(counts) - len(counts) + 1
        rejected = drafts.rejected_by_model + drafts.rejected_by_grammar
        assert drafts.drafted == drafts.accepted + rejected + drafts.dropped
        assert rejected <= drafts.rollbacks <= rejected + 1
    each = [drafts for batch in found for drafts in batch.drafts or ()]
    names = Drafts.__struct_fields__
    return list(found), Drafts(**{name: sum(getattr(item, name) for item in each) for name in names})


@pytest.mark.parametrize("processor", ["grammar", None])
def test_the_text_is_that_of_generate(assistants: dict[str, str], processor: str | None) -> None:
    bound = None if processor else 20
    expected = rows(batches(runner(GENERATE, processor=processor), *SMILES, size=1, bound=bound))
    found, drafts = drafted(assistants["like"], processor)
    assert rows(found) == expected
    assert drafts.accepted
    assert drafts.rejected_by_model
    assert drafts.rejected_by_grammar == 0  # drafts keep to the constraint


def test_who_rejects_a_draft(assistants: dict[str, str]) -> None:
    """The model itself drafts what it would choose, whatever the constraint says."""
    kept, constrained = drafted(assistants["same"], "grammar")
    free, unconstrained = drafted(assistants["same"], "grammar", free_drafts=True)
    assert rows(free) == rows(kept)
    assert constrained.rejected_by_model == constrained.rejected_by_grammar == unconstrained.rejected_by_model == 0
    assert unconstrained.rejected_by_grammar
    assert sum(batch.steps for batch in free) > sum(batch.steps for batch in kept)


def test_sampled_passes_repeat_themselves(assistants: dict[str, str]) -> None:
    asked = {"assistant": assistants["like"], "batch_size": 1, "dtype": "float32", "sampling": "sample"}
    run = runner(GENERATE, processor=None, **asked)
    assert batches(run, "C", size=1, bound=8) == batches(run, "C", size=1, bound=8)


def test_a_capture_and_its_report(assistants: dict[str, str], tmp_path: Path) -> None:
    asked = settings(processor="grammar", assistant=assistants["like"], batch_size=1, window=(1, 2), repeats=1,
                     warmup=0, count=1, dtype="float32", device="cpu", free_drafts=True)  # fmt: skip
    result = captured(tmp_path / "out.json", asked, inputs(tmp_path, 1, "CO\n"), lively("llama"))
    (molecule,), repeat = result.manifest.molecules, result.manifest.timings.repeats[0]
    assert (result.manifest.problems, molecule.valid) == ([], True)
    assert set(map(len, repeat.step_phases_ns["processor"])) == set(result.manifest.steps_per_batch)
    assert repeat.draft_ns is not None
    assert 0 < repeat.draft_ns <= repeat.phases_ns["prefill"] + repeat.phases_ns["forward"]
    report = api.report(result.path)
    assert {check.id for check in report.checks if not check.holds} <= {"wall_time"}
    assert "drafts" in {check.id for check in report.checks}
    assert report.run is not None
    assert report.run.drafts == molecule.drafts
    assert molecule.drafts is not None
    assert molecule.drafts.rejected_by_grammar
    assert report.run.idle_row_steps == 0
    assert report.run.setup.loop == f"input order, assistant {assistants['like']}, free drafts"
    assert METRICS["accepted_ratio"].value(report) == molecule.drafts.accepted / molecule.drafts.drafted
    assert METRICS["draft_ns"].value(report) == repeat.draft_ns
    fills, rounds = report.run.repeats[0].mask_fills, report.run.steps
    assert fills is not UNSET
    assert fills.masks == fills.draft_masks + rounds
    assert 0 < fills.draft_masks <= molecule.drafts.drafted
    assert 0 < fills.draft_ns < fills.ns <= repeat.phases_ns["processor"] + repeat.phases_ns["sampling"]
    assert METRICS["masks_filled"].value(report) == fills.masks
    assert METRICS["draft_mask_ns"].value(report) == fills.draft_ns / fills.draft_masks
    titles = {item.id: item.title for item in report.findings}
    assert titles["forbidden_drafts"].startswith("The grammar forbids the draft that ends ")
    assert titles["drafts"].startswith("Drafts cost ")
    plain = dataclasses.replace(asked, assistant=None, free_drafts=False)
    without = captured(tmp_path / "without.json", plain, inputs(tmp_path, 1, "CO\n"), lively("llama"))
    (verdict,) = comparison_document(api.compare(without.path, result.path)).summary
    per_step = len(molecule.token_ids) / rounds
    assert f"Drafts: {number_text(per_step)} against 1 tokens per row and step, " in verdict
    assert " (masks of draft positions take " in verdict
    (same,) = comparison_document(api.compare(result.path, result.path)).summary
    assert "Drafts" not in same


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"batch_size": 2}, "transformers lets an assistant draft for one sequence at a time"),
        ({"kv_cache": "static"}, "drafts that fail are taken back out of the KV cache"),
        ({"engine": "generate"}, "engine 'generate' has no assistant"),
        ({"forced_runs": True}, "engine 'forced' has no assistant"),
        ({"assistant": None, "engine": "assisted"}, "assisted decoding has an assistant"),
        ({"assistant": None, "free_drafts": True}, "an assistant drafts, and this run has none"),
        ({"processor": "generic"}, "has no table of states, which drafts go back in"),
        ({"free_drafts": True}, "without a processor all drafts are free"),
    ],
)
def test_what_does_not_fit(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(GENERATE, **{"assistant": "llama", "batch_size": 1, **asked})


def test_another_vocabulary_and_a_processor_without_a_table_are_refused(assistants: dict[str, str]) -> None:
    run = {"assistant": assistants["same"], "batch_size": 1, "dtype": "float32"}
    with pytest.raises(UsageError, match="has another vocabulary than 'tiny'"):
        batches(runner(GENERATE, "qwen", None, **run), "C", size=1, bound=3)
    with pytest.raises(UsageError, match="has no table of states, which drafts go back in"):
        batches(runner(GENERATE, "llama", "users:Sums", **run), "C", size=1)


def test_fills_of_masks_that_are_not_recorded_are_none() -> None:
    run = api.report(Path(__file__).parent.parent / "traces" / "cpu-llama-grammar.json.gz").run
    assert run is not None
    assert {repeat.mask_fills for repeat in run.repeats} == {UNSET}
